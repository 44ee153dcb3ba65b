"""Gates: no request is in flight while weights change."""

import asyncio

from marl_verl_asynchronous.gate import Gate


async def test_a_gate_waits_for_requests_under_way_and_holds_new_ones() -> None:
    gate, seen, finish = Gate(), [], asyncio.Event()

    async def request(name: str) -> None:
        async with gate.request():
            seen.append(f"{name} begins")
            await finish.wait()
            seen.append(f"{name} ends")

    first = asyncio.create_task(request("first"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(gate.close())
    await asyncio.sleep(0)
    second = asyncio.create_task(request("second"))
    await asyncio.sleep(0.01)
    assert seen == ["first begins"]
    assert not closing.done()
    finish.set()
    await closing
    await first
    seen.append("weights change")
    await asyncio.sleep(0.01)
    await gate.open()
    await second
    assert seen == ["first begins", "first ends", "weights change", "second begins", "second ends"]


async def test_a_request_that_fails_or_is_cancelled_does_not_keep_a_gate_from_closing() -> None:
    gate = Gate()

    async def request(seconds: float) -> None:
        async with gate.request():
            await asyncio.sleep(seconds)
            raise ValueError("no answer")

    failing, hanging = asyncio.create_task(request(0)), asyncio.create_task(request(60))
    await asyncio.sleep(0.01)
    hanging.cancel()
    await asyncio.wait_for(gate.close(), 30.0)
    held = asyncio.create_task(request(0))  # cancelled while it is held
    await asyncio.sleep(0)
    held.cancel()
    await asyncio.gather(failing, hanging, held, return_exceptions=True)
    await gate.open()
    await asyncio.wait_for(gate.close(), 30.0)


async def test_a_gate_that_closes_again_at_once_holds_those_that_it_was_about_to_let_in() -> None:
    gate, seen = Gate(), []

    async def request() -> None:
        async with gate.request():
            seen.append("in")

    await gate.close()
    held = asyncio.create_task(request())
    await asyncio.sleep(0)
    await gate.open()
    await gate.close()
    await asyncio.sleep(0.01)
    seen.append("closed")
    await gate.open()
    await held
    assert seen == ["closed", "in"]
