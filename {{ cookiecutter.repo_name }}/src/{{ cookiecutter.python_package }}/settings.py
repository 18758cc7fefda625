"""The few settings that differ from Kedro's defaults."""

from {{ cookiecutter.python_package }}.extras.streams.installed import (
    cores,
    hadoop_package,
    spark_package,
)
from {{ cookiecutter.python_package }}.hooks import (
    SparkHooks,
    SparkStreamsHook,
)

HOOKS = (SparkHooks(), SparkStreamsHook())

CONFIG_LOADER_ARGS = {
    "base_env": "base",
    "default_run_env": "local",
    "config_patterns": {"spark": ["spark*", "spark*/**"]},
    # An environment adds to base's settings, key by key, instead of replacing them.
    "merge_strategy": {"spark": "soft", "parameters": "soft"},
    # What conf/base/spark.yml may ask for: {% raw %}${cores:}, ${spark_package:spark-avro}{% endraw %}
    "custom_resolvers": {
        "cores": cores,
        "hadoop_package": hadoop_package,
        "spark_package": spark_package,
    },
}
