//! `cargo xtask comments`: comments of a package, drawn by a seed, as somebody reads them who has
//! not seen the file. Whoever cannot say what one means has found one to write anew.

use std::fmt::Write as _;

use anyhow::Context as _;
use chance::Dice;

use crate::tidy::Repository;

/// Least lines of a comment that is drawn.
const LINES_MIN: usize = 3;
/// Comments of a package, unless the command line says otherwise.
pub(crate) const DRAWN: usize = 10;

/// A comment, and where it is.
struct Comment<'a> {
    path: &'a str,
    line: usize,
    lines: Vec<&'a str>,
    /// The line of code below.
    about: &'a str,
}

/// `count` comments of the package in `src/<package>`, drawn by the seed, with the line below each.
pub(crate) fn draw(
    repository: &Repository,
    package: &str,
    seed: u64,
    count: usize,
) -> anyhow::Result<String> {
    let folder = format!("src/{package}/src/");
    let of_package = repository.files.iter().filter(|(path, _)| path.starts_with(&folder));
    let of_code = of_package
        .filter(|(path, _)| path.strip_suffix(".rs").is_some() && !path.contains("/tests"));
    let mut all: Vec<_> = of_code.flat_map(|(path, text)| comments(path, text)).collect();
    if all.is_empty() {
        return Err(anyhow::anyhow!("no comments of {LINES_MIN} lines in {folder}"))
            .context("packages are the folders of src, such as `scheduler`");
    }
    let mut dice = Dice::new(seed);
    let mut out = String::new();
    for number in 1..=count.min(all.len()) {
        let Comment { path, line, lines, about } = all.swap_remove(dice.index(all.len()));
        writeln!(out, "{package} {number}, {path}:{line}")?;
        for line in lines {
            writeln!(out, "    {line}")?;
        }
        writeln!(out, "    {about}\n")?;
    }
    Ok(out)
}

/// Comments of enough lines. Drawings are left out.
fn comments<'a>(path: &'a str, text: &'a str) -> Vec<Comment<'a>> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text);
    let mut found = Vec::new();
    let mut lines: Vec<&str> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let code = line.trim();
        if code.starts_with("//") {
            lines.push(code);
            continue;
        }
        if lines.len() >= LINES_MIN && !lines.iter().any(|line| line.contains("```")) {
            let line = number + 1 - lines.len();
            found.push(Comment { path, line, lines: std::mem::take(&mut lines), about: code });
        }
        lines.clear();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_comments_of_enough_lines() {
        let text = "//! One.\n//! Two.\n//! Three.\n\n/// Short.\nfn a() {}\n\n/// A.\n/// B.\n/// C.\nfn b() {}\n";
        let found: Vec<_> =
            comments("a.rs", text).iter().map(|one| (one.line, one.about)).collect();
        assert_eq!(found, [(1, ""), (8, "fn b() {}")]);
        let repository = Repository::read(&crate::root()).expect("the repository can be read");
        let drawn = |seed| draw(&repository, "scheduler", seed, 10).expect("it has comments");
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        assert_eq!(drawn(1).matches("scheduler 10, ").count(), 1);
        assert!(draw(&repository, "nowhere", 1, 10).is_err());
    }
}
