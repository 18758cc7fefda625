"""What spark-submit runs: the project, with the options of ``kedro run``."""

from {{ cookiecutter.python_package }}.__main__ import main

if __name__ == "__main__":
    main()
