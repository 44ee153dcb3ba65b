"""Remove a program's folder by its descriptor, never by a path, which a program may rename. Standard library only."""

import contextlib
import os


def _opened(name: str, folder: int) -> int:
    """A descriptor of a folder, whose owner may read and write it from now on."""
    path = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        if os.fstat(path).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{path}", 0o700)
        return os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(path)


def remove(folder: int) -> None:
    """Remove what is in an open folder, and the folder where it now is; also one with thousands of nested folders.

    Folders in it are emptied by moving what is in them up. No link is followed.
    """
    number = 0
    while names := os.listdir(folder):
        for name in names:
            with contextlib.suppress(IsADirectoryError):
                os.unlink(name, dir_fd=folder)
                continue
            inner = _opened(name, folder)
            for entry in os.listdir(inner):
                with contextlib.suppress(IsADirectoryError):
                    os.unlink(entry, dir_fd=inner)
                    continue
                os.close(_opened(entry, inner))  # one that cannot be written cannot be moved
                number += 1
                os.rename(entry, f".{os.getpid()}-{number}", src_dir_fd=inner, dst_dir_fd=folder)
            os.close(inner)
            os.rmdir(name, dir_fd=folder)
    with contextlib.suppress(FileNotFoundError):  # another program may have moved it
        above = os.open("..", os.O_PATH | os.O_DIRECTORY, dir_fd=folder)
        name = os.path.basename(os.readlink(f"/proc/self/fd/{folder}"))
        if os.path.samestat(os.stat(name, dir_fd=above, follow_symlinks=False), os.fstat(folder)):
            os.rmdir(name, dir_fd=above)
