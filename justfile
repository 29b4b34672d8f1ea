# The commands in daily use. `.ci/run` is the truth; these are short names.

# List the commands.
default:
    @just --list

# Run the tests whose names hold FILTER, on any server that is found (or TEST_REDIS=docker|binary|memory|url).
test filter="":
    cargo test --all-features --test it {{filter}}

# Lint the Lua scripts.
lua:
    .ci/luacheck

# The suite with servers of other versions (redis-6.2, redis-7.4, redis-8.2, valkey-8.1, valkey-9.1).
versions *names:
    .ci/versions {{names}}

# Every check, on a machine that has the tools.
checks *backends:
    .ci/checks {{backends}}

# Every check, from a bare Debian 12.
ci:
    .ci/run

# Minutes of faults: TOPOLOGY is single, sentinel or cluster.
soak topology="single" minutes="10":
    cargo run --release --features cli -- soak --topology {{topology}} --minutes {{minutes}}
