//! The tables of bounds in SECURITY.md say what the code says.
//!
//! ```text
//!  | what | value | `file` `NAME` | `file` `test` |
//! ```
//! The constant or field `NAME` in the file has that value, written as people write it, and the test
//! exists in its file. A bound that moves without its row, or loses its test, is found here. A rule
//! without a number has "–" for its value and no `NAME`.

use super::Repository;

const DOCUMENT: &str = "SECURITY.md";
const HEADING: &str = "\n## Bounds\n";
/// Cells of a row.
const CELLS: usize = 4;
/// Value of a rule without a number.
const NO_VALUE: &str = "–";

/// Rows that say something else than the code.
pub(super) fn check(repository: &Repository) -> Vec<String> {
    let Some(text) = repository.files.get(DOCUMENT) else {
        return vec![format!("{DOCUMENT}: not there")];
    };
    let Some((_, table)) = text.split_once(HEADING) else {
        return vec![format!("{DOCUMENT}: no heading \"{}\"", HEADING.trim())];
    };
    let table = table.split("\n## ").next().unwrap_or(table);
    // Below the line that ends the head of each table.
    let rows: Vec<&str> = table
        .split("\n\n")
        .filter_map(|part| part.split_once("\n|---|"))
        .flat_map(|(_, rows)| rows.lines().skip(1))
        .collect();
    if rows.is_empty() {
        return vec![format!("{DOCUMENT}: no row below \"{}\"", HEADING.trim())];
    }
    let wrong = |row: &&str| row_problem(repository, row);
    rows.iter()
        .filter_map(|row| wrong(row).map(|why| format!("{DOCUMENT}: {why}: {row}")))
        .collect()
}

fn row_problem(repository: &Repository, row: &str) -> Option<String> {
    let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
    let [_, value, place, proof] = cells[..] else {
        return Some(format!("{} cells instead of {CELLS}", cells.len()));
    };
    let file = |path: &str| repository.files.get(path).ok_or_else(|| format!("no file {path}"));
    let problem = || -> Result<(), String> {
        match names(place)[..] {
            [path] if value == NO_VALUE => drop(file(path)?),
            [path, name] => check_value(file(path)?, name, value)?,
            _ => return Err("where it is enforced is not `file` `name`".to_owned()),
        }
        let [path, test] = names(proof)[..] else {
            return Err("its test is not `file` `name`".to_owned());
        };
        if is_test(file(path)?, test) { Ok(()) } else { Err(format!("no test {test}")) }
    };
    problem().err()
}

/// What stands in backticks in a cell.
fn names(cell: &str) -> Vec<&str> {
    cell.split('`').filter(|part| !part.trim().is_empty()).collect()
}

fn check_value(code: &str, name: &str, value: &str) -> Result<(), String> {
    let expression = definition(code, name).ok_or_else(|| format!("no value of {name}"))?;
    let said = spoken(expression).ok_or_else(|| format!("`{expression}` is not understood"))?;
    if said.iter().any(|said| said == value) {
        return Ok(());
    }
    Err(format!("the code says {}", said.join(" or ")))
}

/// What a constant or a field is set to, first of all in the file.
fn definition<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| {
        let constant = line
            .split_once(&format!("const {name}: "))
            .and_then(|(_, rest)| rest.split_once(" = "));
        let field = || {
            line.split_once(&format!("{name}: ")).filter(|_| !line.trim_start().starts_with("pub"))
        };
        let (before, expression) = constant.or_else(field)?;
        let whole_word = constant.is_some() || before.ends_with([' ', '{']);
        let end = expression.find([';', ',', '}']).unwrap_or(expression.len());
        whole_word.then(|| expression[..end].trim())
    })
}

/// How people may write a value: `4 << 20` is 4 MiB, or 4,194,304.
fn spoken(expression: &str) -> Option<Vec<String>> {
    let inside = |unit: &str| expression.strip_prefix(unit)?.strip_suffix(')');
    for (call, unit) in [
        ("Duration::from_millis(", "ms"),
        ("Duration::from_secs(", "s"),
        ("Duration::from_mins(", "min"),
    ] {
        if let Some(number) = inside(call) {
            return Some(vec![format!("{} {unit}", number.replace('_', ","))]);
        }
    }
    let number = number(expression)?;
    let mut said = vec![with_commas(number)];
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if number >> shift << shift == number && number > 0 {
            said.push(format!("{} {unit}", number >> shift));
        }
    }
    Some(said)
}

fn number(expression: &str) -> Option<u64> {
    if let Some((left, right)) = expression.split_once("<<") {
        return number(left)?.checked_shl(u32::try_from(number(right)?).ok()?);
    }
    expression.trim().replace('_', "").parse().ok()
}

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Whether a function is a test: its attribute stands in one of the lines before it.
fn is_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().collect();
    let is_function = |line: &&str| line.contains(&format!("fn {name}("));
    let Some(place) = lines.iter().position(is_function) else { return false };
    lines[place.saturating_sub(3)..place]
        .iter()
        .any(|line| line.trim() == "#[test]" || line.trim().starts_with("#[tokio::test"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_said_as_people_say_them() {
        let said = |expression| spoken(expression).expect("understood");
        assert_eq!(said("4 << 20"), ["4,194,304", "4 MiB", "4096 KiB"]);
        assert_eq!(said("250_000"), ["250,000"]);
        assert_eq!(said("Duration::from_secs(30)"), ["30 s"]);
        assert_eq!(spoken("other()"), None);
    }

    #[test]
    fn a_row_that_differs_from_the_code_is_found() {
        let code = "const MAX: usize = 8 << 10;\n    #[test]\n    fn holds() {}\n";
        let findings = |row: &str| {
            let document = format!("# T\n{HEADING}\n| a | b | c | d |\n|---|---|---|---|\n{row}\n");
            check(&Repository::of(&[(DOCUMENT, &document), ("a.rs", code)]))
        };
        assert!(findings("| x | 8 KiB | `a.rs` `MAX` | `a.rs` `holds` |").is_empty());
        assert!(findings("| rule | – | `a.rs` | `a.rs` `holds` |").is_empty());
        for (row, why) in [
            ("| rule | – | `b.rs` | `a.rs` `holds` |", "no file b.rs"),
            ("| rule | – | `a.rs` | `a.rs` `fails` |", "no test fails"),
            ("| x | 8 KiB | `a.rs` | `a.rs` `holds` |", "where it is enforced is not"),
            ("| x | 9 KiB | `a.rs` `MAX` | `a.rs` `holds` |", "the code says 8,192 or 8 KiB"),
            ("| x | 8 KiB | `a.rs` `MIN` | `a.rs` `holds` |", "no value of MIN"),
            ("| x | 8 KiB | `b.rs` `MAX` | `a.rs` `holds` |", "no file b.rs"),
            ("| x | 8 KiB | `a.rs` `MAX` | `a.rs` `fails` |", "no test fails"),
            ("| x | 8 KiB | `a.rs` `MAX` |", "3 cells"),
        ] {
            assert!(findings(row).iter().any(|finding| finding.contains(why)), "{row}");
        }
        assert!(!check(&Repository::of(&[(DOCUMENT, "nothing")])).is_empty());
    }
}
