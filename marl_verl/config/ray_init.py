"""Check of `ray_kwargs.ray_init`: arguments that `ray.init` would refuse after start-up, or that the run sets."""

from __future__ import annotations

from omegaconf import DictConfig

from marl_verl.errors import MarlError, nearest

WHERE = "ray_kwargs.ray_init"
ARGUMENTS = (
    *("address", "num_cpus", "num_gpus", "resources", "labels", "object_store_memory", "ignore_reinit_error"),
    *("include_dashboard", "dashboard_host", "dashboard_port", "configure_logging", "logging_level"),
    *("logging_format", "log_to_driver", "namespace", "runtime_env", "enable_resource_isolation", "cgroup_path"),
    *("system_reserved_cpu", "system_reserved_memory", "object_spilling_directory", "_plasma_directory", "_memory"),
    *("_system_config", "_metrics_export_port", "_node_name", "_driver_object_store_memory"),
    *("_enable_object_reconstruction",),
)
"""Arguments of `ray.init` that a config can give (a test compares them): importing Ray takes a second."""
RUNTIME = (
    *("env_vars", "working_dir", "py_modules", "py_executable", "pip", "uv", "conda", "container", "image_uri"),
    *("excludes", "config", "worker_process_setup_hook", "nsight", "rocprof_sys", "java_jars"),
)
"""Keys of `runtime_env` (a test compares them): Ray ignores others."""
REPLACED = {
    "_temp_dir": "the run's scratch folder is in TMPDIR",
    "_node_ip_address": "a run on one machine listens on loopback only (docs/security.md)",
    "local_mode": "a run needs processes of its own",
}


def check_ray_init(config: DictConfig) -> None:
    """MarlError for an argument that `ray.init` does not have, or that the run sets itself."""
    for name in map(str, config.ray_kwargs.ray_init):
        if name in REPLACED:
            raise MarlError(f"'{WHERE}.{name}' cannot be set: {REPLACED[name]}")
        if name not in ARGUMENTS:
            raise MarlError(f"unknown key '{WHERE}.{name}': {nearest(name, ARGUMENTS)}")
    for name in map(str, config.ray_kwargs.ray_init.get("runtime_env") or ()):
        if name not in RUNTIME:
            raise MarlError(f"unknown key '{WHERE}.runtime_env.{name}': {nearest(name, RUNTIME)}")
