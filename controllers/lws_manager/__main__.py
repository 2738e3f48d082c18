"""``python -m pyreconcile_controllers.lws_manager``: the same as the program ``pyreconcile-lws-manager``."""

from pyreconcile_controllers.lws_manager import main

if __name__ == "__main__":
    main()
