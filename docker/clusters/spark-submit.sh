#!/bin/sh
# Starts a Spark Connect server on the cluster of MASTER (yarn, k8s://…, spark://…, local[*]).
#   MASTER=yarn docker/clusters/spark-submit.sh --conf spark.yarn.queue=backfill
# Jars are those of Iceberg and its store: PACKAGES by Maven's names, or a path in further options.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec "${SPARK_HOME:?names the folder of Spark}/bin/spark-submit" \
  --master "${MASTER:?names the cluster}" \
  --deploy-mode client \
  --properties-file "${CONF:-$here/spark-connect.conf}" \
  ${PACKAGES:+--packages "$PACKAGES"} \
  --class org.apache.spark.sql.connect.service.SparkConnectServer \
  "$@" \
  spark-internal
