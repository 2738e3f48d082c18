"""``python -m pyreconcile`` is the ``pyreconcile`` command."""

from pyreconcile.cli import main

if __name__ == "__main__":
    main()
