"""All that touches verl, vLLM, Ray and TransferQueue."""
