# Every recipe is one plain cargo command (or a few); `just` only saves typing.

# Format, lints, tidy.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    cargo xtask tidy

# Every test of every package, slow ones in their short form.
test:
    cargo test

# The same in full.
test-full:
    QUORATE_TESTS=full cargo test

# One simulated run; the same seed gives the same run.
sim SEED:
    cargo run --profile sim -p sim -- run --seed {{SEED}}

# All regressions and N simulated runs, seeds 0 to N - 1.
sim-many N:
    cargo run --profile sim -p sim -- many --to {{N}}

# Measurements against a cluster on this machine.
bench:
    cargo run --release -- bench --help

# What CI runs.
ci:
    .ci/run
