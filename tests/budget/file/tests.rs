//! Tests of what the file of the budget lets through.

use super::*;

const FILE: &str = "\
# What it is.

operation | rows | bytes
place 1   |    5 |  1000
finish    |    2 |   100

raised | column | to | because
";

fn budget(raised: &str) -> Budget {
    Budget::parse(&format!("{FILE}{raised}")).expect("it is a budget")
}

fn measured(place: [u64; 2]) -> Vec<Table> {
    let mut table = Table::new("operation", &["rows", "bytes"]);
    table.rows = vec![("place 1".to_owned(), place.to_vec()), ("finish".to_owned(), vec![2, 100])];
    vec![table]
}

#[test]
fn a_budget_that_is_read_is_written_again() {
    let raised =
        "raised  | column | to | because\nplace 1 | bytes  | 70 | an event has a message\n";
    let text = FILE.replace("raised | column | to | because\n", raised);
    assert_eq!(Budget::parse(&text).expect("it is a budget").to_string(), text);
}

#[test]
fn a_rise_fails_and_names_operation_column_and_both_figures() {
    let kept = Vec::<String>::new();
    assert_eq!(budget("").check(&measured([5, 1_050])), kept, "within 5 %");
    assert_eq!(
        budget("").check(&measured([5, 1_051])),
        ["place 1: bytes rose from 1000 to 1051 (+5 %)"]
    );
    assert_eq!(
        budget("").check(&measured([6, 1_000])),
        ["place 1: rows rose from 5 to 6 (+20 %)"],
        "whole things are exact"
    );
}

#[test]
fn a_fall_fails_so_that_it_is_kept() {
    assert_eq!(budget("").check(&measured([5, 950])), Vec::<String>::new());
    let wrong = budget("").check(&measured([4, 949]));
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(wrong[0].starts_with("place 1: rows fell from 5 to 4"), "{wrong:?}");
    let updated = budget("").update(&measured([4, 949]));
    assert_eq!(updated.check(&measured([4, 949])), Vec::<String>::new());
    assert_eq!(updated.figure("place 1", "bytes"), Some(949));
}

/// A rise passes by a line that names operation, column and reason, and by nothing else.
#[test]
fn a_rise_passes_with_a_reason_only() {
    let now = measured([6, 1_000]);
    let updated = budget("").update(&now);
    assert_eq!(updated.figure("place 1", "rows"), Some(5), "a figure is never raised");
    let wrong = updated.check(&now);
    assert_eq!(wrong, ["place 1: rows is raised to 6 without a reason: write it into its line"]);
    let reasoned = budget("place 1 | rows | 6 | a deployment has a row\n");
    assert_eq!(reasoned.check(&now), Vec::<String>::new());
    assert_eq!(reasoned.update(&now), reasoned);
    for other in ["finish | rows | 6 | a deployment has a row", "place 1 | rows | 6 | because"] {
        assert!(!budget(&format!("{other}\n")).check(&now).is_empty(), "{other}");
    }
    assert!(!reasoned.check(&measured([7, 1_000])).is_empty(), "the reason was for 6");
    let again = reasoned.update(&measured([7, 1_000]));
    assert!(!again.check(&measured([7, 1_000])).is_empty(), "and for no more");
}

#[test]
fn a_raise_goes_with_what_it_was_for() {
    let reasoned = budget("place 1 | rows | 9 | a deployment has rows\n");
    let less = reasoned.update(&measured([7, 1_000]));
    assert_eq!(less.check(&measured([7, 1_000])), Vec::<String>::new(), "it keeps its reason");
    let wrong = reasoned.check(&measured([5, 1_000]));
    assert!(wrong[0].starts_with("place 1: rows fell from 9 to 5"), "{wrong:?}");
    assert_eq!(reasoned.update(&measured([5, 1_000])), budget(""));
    assert!(
        !budget("place 1 | rows | 5 | it is as before\n").check(&measured([5, 1_000])).is_empty()
    );
}

#[test]
fn new_and_removed_operations_are_named() {
    let mut now = measured([5, 1_000]);
    now[0].rows[1].0 = "start".to_owned();
    let wrong = budget("").check(&now);
    assert!(wrong.contains(&"start: rows: 2, and the budget has no figure for it".to_owned()));
    assert!(wrong.contains(&"finish: rows is in the budget and is not measured".to_owned()));
    assert_eq!(budget("").update(&now).check(&now), Vec::<String>::new());
}

#[test]
fn a_line_that_is_no_row_is_refused() {
    for line in ["place 1 | rows | six | a reason it is", "place 1 | rows | 6"] {
        assert!(Budget::parse(&format!("{FILE}{line}\n")).is_err(), "{line}");
    }
    assert!(Budget::parse("operation | rows\nplace 1 | 1 | 2\n").is_err());
    let twice = "place 1 | rows | 6 | a reason it is\n".repeat(2);
    assert!(Budget::parse(&format!("{FILE}{twice}")).is_err());
}
