//! The checks on this repository, and on files that break each of them.

use super::*;

fn repository() -> Repository {
    Repository::read(&crate::root()).expect("the repository can be read")
}

fn of(files: &[(&str, &str)]) -> Repository {
    Repository::of(files)
}

#[track_caller]
fn holds(name: &str) {
    let (_, check) = CHECKS.iter().find(|(known, _)| *known == name).expect("a check's name");
    let findings = check(&repository());
    assert!(findings.is_empty(), "{name}:\n  {}", findings.join("\n  "));
}

#[test]
fn every_source_file_says_what_it_is_for() {
    holds("module-docs");
}

#[test]
fn every_protocol_file_is_documented() {
    holds("proto-docs");
}

#[test]
fn pure_packages_depend_on_what_is_allowed() {
    holds("pure-dependencies");
}

#[test]
fn the_bounds_that_are_written_down_are_those_of_the_code() {
    holds("bounds");
}

#[test]
fn comments_of_the_product_are_narrow() {
    holds("comment-width");
}

#[test]
fn public_types_of_a_package_have_different_names() {
    holds("type-names");
}

#[test]
fn documents_are_narrow_and_short() {
    holds("documents");
}

#[test]
fn pure_packages_do_no_io() {
    holds("pure-code");
}

#[test]
fn nothing_is_left_unfinished_without_an_issue() {
    holds("unfinished-work");
}

#[test]
fn trees_are_removed_and_foreign_text_is_printed_in_one_place() {
    holds("one-way");
    let removal = "fn f() {\n    std::fs::remove_dir_all(path)\n}";
    let print = "fn f() {\n    output.log_or_file(bytes)\n}";
    let found = one_way(&of(&[
        ("src/agent/src/a.rs", removal),
        ("src/ground/src/disk.rs", removal),
        ("src/agent/src/a/tests.rs", removal),
        ("jepsen/src/a.rs", removal),
        ("src/cli/job/a.rs", print),
        ("src/cli/alloc/tail.rs", print),
    ]));
    let places: Vec<_> = found.iter().filter_map(|one| one.split_once(": ")).collect();
    let places: Vec<_> = places.into_iter().map(|(place, _)| place).collect();
    assert_eq!(places, ["src/agent/src/a.rs:2", "src/cli/job/a.rs:2"]);
}

#[test]
fn no_file_names_a_machine() {
    holds("machine-paths");
}

#[test]
fn every_decision_is_in_the_index() {
    holds("decision-index");
}

#[test]
fn no_build_has_a_deliberate_bug_unless_it_is_asked_for() {
    holds("plants");
}

#[test]
fn a_plant_outside_its_feature_is_found() {
    let list = "#[cfg(feature = \"plant\")]\npub const TABLE: [u8; 1] = [\n    (Plant::A, \"M1\", \"a\"),\n];\n\
                #[cfg(feature = \"plant\")]\nmod selected {}\n#[cfg(feature = \"plant\")]\npub use selected::select;\n";
    let choice = "#[cfg(feature = \"plant\")]\npub fn select() {}\n";
    let report = "| plant | what |\n| --- | --- |\n| M1 | a |\n";
    let good = [
        ("src/fsm/src/plant.rs", list),
        ("src/ground/src/plant.rs", choice),
        ("jepsen/PLANTED.md", report),
        ("src/log.rs", "if is_planted(Plant::A) { wrong() }\n"),
        ("Cargo.toml", "[features]\nplant = [\"fsm/plant\"] # for tests\n"),
    ];
    assert_eq!(plants(&of(&good)), Vec::<String>::new());
    let bad = [
        ("src/fsm/src/plant.rs", "pub const TABLE: [u8; 0] = [];\n"),
        ("src/ground/src/plant.rs", "pub fn select() {}\n"),
        ("src/log.rs", "let plant = Plant::A;\n"),
        ("Cargo.toml", "default = [\"plant\"]\n"),
        ("jepsen/PLANTED.md", "| M1 | a |\n| M7 | nobody knows it |\n"),
    ];
    for (path, text) in bad {
        let mut files = good;
        let at = files.iter().position(|(known, _)| *known == path).expect("a good file");
        files[at].1 = text;
        let findings = plants(&of(&files));
        assert!(
            findings.iter().any(|finding| finding.contains(path) || finding.contains("row for")),
            "{path}: {findings:?}"
        );
    }
}

#[test]
fn public_items_have_docs() {
    holds("public-docs");
}

#[test]
fn links_lead_somewhere() {
    holds("links");
}

#[test]
fn there_is_one_test_binary() {
    holds("one-test-binary");
}

/// A check that never finds anything would hold as well.
#[test]
fn each_check_finds_what_breaks_it() {
    let later = concat!("// TO", "DO: later");
    let home = concat!("data_dir = \"/ho", "me/me\"");
    let wide = format!("//! Docs.\n/// {}\npub struct Place;\n", "x".repeat(97));
    let broken = of(&[
        ("src/a.rs", "use std::fmt;\n"),
        ("proto/quorate/v1/a.proto", "service A {\n}\n"),
        (
            "src/fsm/Cargo.toml",
            "[dependencies]\ntokio.workspace = true\n[dev-dependencies]\nx = \"1\"\n",
        ),
        ("src/leader/Cargo.toml", "[dependencies.rand]\nversion = \"1\"\n"),
        ("src/scheduler/Cargo.toml", "[dependencies]\nregex = \"1\"\n"),
        ("src/fsm/src/lib.rs", "//! Docs of HashMap.\nuse std::collections::HashMap;\n"),
        ("src/calendar/Cargo.toml", "[dependencies]\n"),
        ("src/chance/Cargo.toml", "[dependencies]\n"),
        ("src/cron/Cargo.toml", "[dependencies]\n"),
        ("src/elastic/Cargo.toml", "[dependencies]\n"),
        ("src/jobspec/Cargo.toml", "[dependencies]\n"),
        ("src/shapes/Cargo.toml", "[dependencies]\n"),
        (
            "ARCHITECTURE.md",
            "# packages without I/O\ncalendar ->\nchance ->\ncron ->\nfsm ->\nfsm (tests) -> chance\n\
             elastic ->\njobspec ->\nleader ->\nscheduler ->\nshapes ->\nserver ->\n\nraft ->\n\
             01234567890123456789012345678901234567890123456789012345678901234567890123456789\
             01234567890123456789012345678901234567890123456789\n",
        ),
        ("src/b.rs", later),
        ("src/c.rs", "//! Half of a module.\npub fn undocumented() {}\n"),
        ("src/d.rs", "//! Docs.\nfn f() {\n    std::fs::remove_dir_all(path)\n}\n"),
        ("cluster-configs/c.toml", home),
        ("docs/adr/README.md", "[one](0001-one.md)\n"),
        ("docs/adr/2-two.md", "no date\n"),
        ("tests/second.rs", "//! A second binary.\n"),
        ("src/x/src/a.rs", &wide),
        ("src/x/src/b.rs", "//! Docs.\n/// Docs.\npub enum Place {}\n"),
    ]);
    let counts: Vec<(&str, usize)> =
        CHECKS.iter().map(|(name, check)| (*name, check(&broken).len())).collect();
    let expected = [
        ("module-docs", 2),
        ("public-docs", 1),
        ("proto-docs", 1),
        // Two dependencies, and a package that is not checked.
        ("pure-dependencies", 3),
        ("pure-code", 1),
        ("unfinished-work", 1),
        ("machine-paths", 1),
        ("decision-index", 7),
        ("links", 1),
        ("one-test-binary", 1),
        // Its four gates and the report of who caught what: none of them is there.
        ("plants", 5),
        ("one-way", 1),
        // There is no list.
        ("arrows", 1),
        ("bounds", 1),
        ("comment-width", 1),
        ("type-names", 1),
        // A line that is too wide; there are no lessons.
        ("documents", 1),
    ];
    assert_eq!(counts, expected);
}

#[test]
fn functions_are_measured_to_their_closing_brace() {
    let text = "impl A {\n    pub(crate) async fn long(&self) {\n        one();\n    }\n}\nfn short() {}\n";
    let found: Vec<(&str, usize, usize)> =
        functions(text).map(|function| (function.name, function.line, function.lines)).collect();
    assert_eq!(found, [("long", 2, 3)]);
}

#[test]
fn only_absolute_paths_belong_to_a_machine() {
    let start = concat!("/wo", "rk/");
    assert!(names_path(&format!("\"{start}a\""), start));
    assert!(!names_path(&format!("target{start}a"), start));
}

#[test]
fn links_are_resolved_from_their_folder() {
    assert_eq!(resolve("docs/adr", "../style.md"), "docs/style.md");
    assert_eq!(resolve("", "./docs/"), "docs");
}
