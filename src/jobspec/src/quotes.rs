//! Quotes and heredocs that are not closed. The parser says of one only that it expected something
//! else, at a place where it gave up; the author looks for the quote. Owns a scan for that alone,
//! run after the parser has refused a file; it never decides whether a file is valid.

/// Templates in templates that are followed.
const DEPTH_MAX: usize = 16;

/// Byte offset of the first quote that is not closed on its line, or of the first heredoc without
/// its end, and what to say.
pub(super) fn unclosed(source: &str) -> Option<(usize, &'static str)> {
    let bytes = source.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &source.as_bytes()[at..];
        at = match rest {
            [b'#', ..] | [b'/', b'/', ..] => line_end(source, at),
            [b'/', b'*', ..] => find(source, at + 2, "*/").map_or(bytes.len(), |end| end + 2),
            [b'<', b'<', ..] => match heredoc_end(source, at) {
                Some(end) => end,
                None => {
                    return Some((
                        at,
                        "this heredoc is not closed: its word must stand alone on a later line",
                    ));
                }
            },
            [b'"', ..] => match string_end(source, at, 0) {
                Some(end) => end,
                None => {
                    return Some((at, "this quote is not closed on its line: write a second one"));
                }
            },
            _ => at + 1,
        };
    }
    None
}

fn find(source: &str, from: usize, what: &str) -> Option<usize> {
    let bytes = source.as_bytes().get(from..)?;
    bytes.windows(what.len()).position(|window| window == what.as_bytes()).map(|at| from + at)
}

fn line_end(source: &str, from: usize) -> usize {
    find(source, from, "\n").unwrap_or(source.len())
}

/// Behind a heredoc that begins at `at`; what is none is passed over.
fn heredoc_end(source: &str, at: usize) -> Option<usize> {
    let opening = &source[at + 2..line_end(source, at)];
    let word = opening.strip_prefix('-').unwrap_or(opening).trim();
    let is_word = word.starts_with(|c: char| c.is_alphabetic() || c == '_');
    if !is_word || word.contains(|c: char| !c.is_alphanumeric() && c != '_' && c != '-') {
        return Some(at + 2);
    }
    let mut start = line_end(source, at) + 1;
    while start <= source.len() {
        let end = line_end(source, start);
        if source.get(start..end).is_some_and(|line| line.trim() == word) {
            return Some(end);
        }
        start = end + 1;
    }
    None
}

/// Behind the text whose first quote is at `at`, if it ends on the same line.
fn string_end(source: &str, at: usize, depth: usize) -> Option<usize> {
    let bytes = source.as_bytes();
    let mut at = at + 1;
    loop {
        at = match *bytes.get(at..)? {
            [] | [b'\n', ..] => return None,
            [b'"', ..] => return Some(at + 1),
            [b'\\', _, ..] => at + 2,
            [b'$', b'$', b'{', ..] | [b'%', b'%', b'{', ..] => at + 3,
            [b'$' | b'%', b'{', ..] if depth < DEPTH_MAX => template_end(source, at + 2, depth)?,
            _ => at + 1,
        };
    }
}

/// Behind the brace that closes the template which begins at `at`.
fn template_end(source: &str, at: usize, depth: usize) -> Option<usize> {
    let bytes = source.as_bytes();
    let (mut at, mut open) = (at, 1_usize);
    while open > 0 {
        at = match *bytes.get(at..)? {
            [] | [b'\n', ..] => return None,
            [b'"', ..] => string_end(source, at, depth + 1)?,
            [b'{', ..] => {
                open += 1;
                at + 1
            }
            [b'}', ..] => {
                open -= 1;
                at + 1
            }
            _ => at + 1,
        };
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::unclosed;

    /// `source` has its unclosed quote or heredoc at `¦`, if it has one.
    #[track_caller]
    fn check(source: &str) {
        let expected = source.find('¦');
        let found = unclosed(&source.replace('¦', "")).map(|(at, _)| at);
        assert_eq!(found, expected, "{source}");
    }

    #[test]
    fn the_quote_that_is_not_closed_is_found() {
        check("a = ¦\"b\nc = \"d\"\n");
        check("a = \"b\"\nc = ¦\"d");
        check("a = \"b\"\nc = \"d\\\"\"\ne = ¦\"f\\\"\n");
        check("a = [\"b\", ¦\"c]\nd = \"e\"");
        check("a = \"${env[\"X\"]}\"\nb = ¦\"${env[\"X\"]}\n");
        check("a = ¦\"${env[\"X]}\"\nb = \"c\"");
        check("a = <<EOF\nit's \"\nEOF\nb = ¦\"c\n");
        check("a = ¦<<EOF\nb\n EOFF\n");
        check("ä = \"ö\" # \"\nb = ¦\"c\n");
    }

    #[test]
    fn closed_quotes_are_left_alone() {
        check("");
        check("a = \"\" # \"\n// \"\n/* \" \n \" */ b = \"c\"");
        check("a = <<-EOF\n  \"\n  EOF\nb = 1 << 2");
        check("a = \"$${\" \nb = \"%%{\"\nc = \"\\\\\"");
        check("/* never closed \"");
        check("a = <<");
    }
}
