#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a large part of the matrix: all of its cells, or the shard of them that APOGEE_TEST_SHARD=I/N names
# (tests/support/test_shard.h):
#
#   sharded.sh APOGEE matrix [options]
exec "$@" ${APOGEE_TEST_SHARD:+--shard "$APOGEE_TEST_SHARD"}
