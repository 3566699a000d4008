//! A build without the feature `plant` has no deliberate bug in it: neither the table of names nor the variable that chooses one.
#![expect(clippy::unwrap_used, reason = "tests")]

/// Words that only the table and the choice contain.
const TELLTALES: [&str; 3] = ["QUORATE_PLANT", "torn-tail-is-fatal", "swallow-sync-error"];

#[test]
fn the_binary_has_deliberate_bugs_only_if_it_was_asked_for_them() {
    let binary = std::fs::read(env!("CARGO_BIN_EXE_quorate")).unwrap();
    for word in TELLTALES {
        let found = binary.windows(word.len()).any(|window| window == word.as_bytes());
        assert_eq!(found, cfg!(feature = "plant"), "{word}");
    }
    // The search finds what is there.
    let there = b"bootstrap_expect";
    assert!(binary.windows(there.len()).any(|window| window == there));
}
