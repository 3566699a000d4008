//! Regular expressions of constraints, in the syntax of Go's `regexp` (RE2), because job files are
//! written for that.
//!
//! The crate `regex` has the same power and nearly the same syntax. This module translates what the
//! crate would read differently: `\Q…\E`, octal escapes, a `{` that begins no repetition, `[` and
//! `&&` inside a class, and classes like `\d` (ASCII only in Go). It refuses what Go refuses:
//! look-around, back references, `a**`, repetitions over 1,000, and flags that Go lacks.

use std::{
    collections::BTreeSet,
    fmt::{Arguments, Write as _},
};

use regex::{Regex, RegexBuilder};

/// Largest compiled program of one expression, bytes.
const BYTES_MAX: usize = 1 << 20;
/// Smallest program size that is measured, bytes. Smaller programs count as this.
const BYTES_MIN: usize = 1 << 10;
/// Highest number in a repetition (RE2's limit).
const REPEAT_MAX: u32 = 1_000;
/// Names of classes in `[:name:]`.
const CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
    "space", "upper", "word", "xdigit",
];

/// Compiles a pattern in Go's syntax. Returns the expression and the size of its program in bytes,
/// rounded up to a power of two. The error says what is wrong with the pattern.
pub(crate) fn compile(pattern: &str) -> Result<(Regex, usize), String> {
    let mut reader = Reader {
        rest: pattern,
        out: String::new(),
        before: Before::Nothing,
        names: BTreeSet::new(),
    };
    while let Some(c) = reader.next() {
        reader.read(c)?;
    }
    let mut bytes = BYTES_MIN;
    loop {
        // The library does not report the size, only whether it is within a limit. So the limit is
        // doubled until it suffices. A try stops at its limit, so all tries together take about
        // twice as long as the last.
        match RegexBuilder::new(&reader.out).size_limit(bytes).build() {
            Ok(regex) => return Ok((regex, bytes)),
            Err(regex::Error::CompiledTooBig(_)) if bytes < BYTES_MAX => bytes *= 2,
            Err(error) => {
                let text = error.to_string();
                let cause = text.lines().last().unwrap_or(&text);
                return Err(cause.trim_start_matches("error: ").to_owned());
            }
        }
    }
}

/// What stands before a repetition operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    Nothing,
    Operand,
    Repetition,
}

struct Reader<'p> {
    /// The part of the pattern that has not been read.
    rest: &'p str,
    /// The part that has been read, translated to the syntax of the crate.
    out: String,
    before: Before,
    /// Names of capture groups so far, to refuse duplicates.
    names: BTreeSet<&'p str>,
}

impl Reader<'_> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    fn skip(&mut self, prefix: &str) -> bool {
        let rest = self.rest.strip_prefix(prefix);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn write(&mut self, text: Arguments<'_>) {
        self.out.write_fmt(text).expect("writing to a string");
    }

    fn operand(&mut self, text: &str) {
        self.out.push_str(text);
        self.before = Before::Operand;
    }

    fn literal(&mut self, c: char) {
        push_char(&mut self.out, c);
        self.before = Before::Operand;
    }

    fn read(&mut self, c: char) -> Result<(), String> {
        match c {
            '\\' => self.escape()?,
            '[' => {
                self.class()?;
                self.before = Before::Operand;
            }
            '(' => self.group()?,
            '|' => {
                self.out.push('|');
                self.before = Before::Nothing;
            }
            '*' | '+' | '?' => self.repetition(&c.to_string())?,
            '{' => match counts(self.rest) {
                None => self.literal('{'),
                Some((low, high, rest)) => {
                    let text = format!("{{{}", &self.rest[..self.rest.len() - rest.len()]);
                    self.rest = rest;
                    let is_over = low > REPEAT_MAX || high.is_some_and(|high| high > REPEAT_MAX);
                    if is_over || high.is_some_and(|high| high < low) {
                        return Err(format!("invalid repeat count: {text} (at most {REPEAT_MAX})"));
                    }
                    self.repetition(&text)?;
                }
            },
            ')' | '.' | '^' | '$' => self.operand(&c.to_string()),
            _ => self.literal(c),
        }
        Ok(())
    }

    /// Writes a repetition operator, and the `?` after it that makes it lazy.
    fn repetition(&mut self, text: &str) -> Result<(), String> {
        match self.before {
            Before::Nothing => Err(format!("missing argument to repetition operator: {text}")),
            Before::Repetition => Err(format!("invalid nested repetition operator: {text}")),
            Before::Operand => {
                self.out.push_str(text);
                if self.skip("?") {
                    self.out.push('?');
                }
                self.before = Before::Repetition;
                Ok(())
            }
        }
    }

    /// Reads what follows `(`.
    fn group(&mut self) -> Result<(), String> {
        self.before = Before::Nothing;
        if !self.skip("?") {
            self.out.push('(');
            return Ok(());
        }
        if ["=", "!", "<=", "<!"].iter().any(|sign| self.rest.starts_with(sign)) {
            return Err("look-around is not supported: (?= (?! (?<= (?<!".to_owned());
        }
        if self.skip("P<") || self.skip("<") {
            let (name, rest) = self.rest.split_once('>').ok_or("missing > of a named group")?;
            let is_word = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            if name.is_empty() || !is_word {
                return Err(format!("invalid group name: \"{name}\""));
            }
            if !self.names.insert(name) {
                return Err(format!("duplicate group name: \"{name}\""));
            }
            self.rest = rest;
            // The group becomes unnamed, because captures are never read.
            self.out.push('(');
            return Ok(());
        }
        self.flags()
    }

    /// Reads what follows `(?`: flags, then `)` or `:`.
    fn flags(&mut self) -> Result<(), String> {
        let begin = self.rest;
        let mut is_negated = false;
        let mut has_flag = false;
        while let Some(c) = self.next() {
            let text = &begin[..begin.len() - self.rest.len()];
            match c {
                'i' | 'm' | 's' | 'U' => has_flag = true,
                '-' if !is_negated => (is_negated, has_flag) = (true, false),
                ':' | ')' if !is_negated || has_flag => {
                    if text != ")" {
                        self.write(format_args!("(?{text}"));
                    }
                    return Ok(());
                }
                _ => return Err(format!("invalid flags: (?{text} (flags are i, m, s and U)")),
            }
        }
        Err(format!("invalid flags: (?{begin}"))
    }

    /// Reads what follows `\` outside a class.
    fn escape(&mut self) -> Result<(), String> {
        let begin = self.rest;
        let c = self.next().ok_or("trailing backslash at the end")?;
        match c {
            'A' => self.operand(r"\A"),
            'z' => self.operand(r"\z"),
            'b' => self.operand(r"(?-u:\b)"),
            'B' => self.operand(r"(?-u:\B)"),
            'Q' => {
                let (text, rest) = self.rest.split_once(r"\E").unwrap_or((self.rest, ""));
                for c in text.chars() {
                    self.literal(c);
                }
                self.rest = rest;
            }
            'p' | 'P' => {
                let class = self.unicode_class(c)?;
                self.operand(&class);
            }
            _ => {
                if let Some((class, is_negated)) = perl_class(c) {
                    let sign = if is_negated { "^" } else { "" };
                    self.operand(&format!("[{sign}{class}]"));
                } else {
                    self.rest = begin;
                    let c = self.escaped_char()?;
                    self.literal(c);
                }
            }
        }
        Ok(())
    }

    /// Reads the escape after `\` that stands for one character, inside or outside a class.
    fn escaped_char(&mut self) -> Result<char, String> {
        let c = self.next().ok_or("trailing backslash at the end")?;
        let invalid = || format!(r"invalid escape sequence: \{c}");
        let is_octal = |c: &char| ('0'..='7').contains(c);
        let number = match c {
            'a' => return Ok('\x07'),
            'f' => return Ok('\x0c'),
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'v' => return Ok('\x0b'),
            '1'..='7' if !self.peek().as_ref().is_some_and(is_octal) => {
                return Err(format!(
                    r"invalid escape sequence: \{c} (back references are not supported)"
                ));
            }
            '0'..='7' => {
                let mut number = c.to_digit(8).ok_or_else(invalid)?;
                for _ in 0..2 {
                    let Some(digit) = self.peek().filter(is_octal).and_then(|c| c.to_digit(8))
                    else {
                        break;
                    };
                    self.next();
                    number = number * 8 + digit;
                }
                number
            }
            'x' => {
                let digits = if self.skip("{") {
                    let (digits, rest) = self.rest.split_once('}').ok_or_else(invalid)?;
                    self.rest = rest;
                    digits
                } else {
                    let digits = self.rest.get(..2).ok_or_else(invalid)?;
                    self.rest = &self.rest[2..];
                    digits
                };
                let is_hex = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_hexdigit());
                let number = u32::from_str_radix(digits, 16).ok().filter(|_| is_hex);
                number.ok_or_else(invalid)?
            }
            _ if c.is_ascii() && !c.is_ascii_alphanumeric() => return Ok(c),
            _ => return Err(invalid()),
        };
        char::from_u32(number).ok_or_else(invalid)
    }

    /// Reads what follows `\p` or `\P`: a letter, or a name in braces that `^` may negate.
    fn unicode_class(&mut self, sign: char) -> Result<String, String> {
        let name = if self.skip("{") {
            let (name, rest) = self.rest.split_once('}').ok_or(r"missing } of a class \p{")?;
            self.rest = rest;
            name
        } else {
            let begin = self.rest;
            let c = self.next().ok_or("trailing backslash at the end")?;
            &begin[..c.len_utf8()]
        };
        let (name, is_negated) = name.strip_prefix('^').map_or((name, false), |name| (name, true));
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!(r"invalid character class: \{sign}{{{name}}}"));
        }
        let sign = if is_negated == (sign == 'P') { 'p' } else { 'P' };
        Ok(format!(r"\{sign}{{{name}}}"))
    }

    /// Reads what follows `[`, up to its `]`.
    fn class(&mut self) -> Result<(), String> {
        let begin = self.rest;
        let missing = || format!("missing closing ]: [{begin}");
        self.out.push('[');
        if self.skip("^") {
            self.out.push('^');
        }
        let mut is_first = true;
        while is_first || !self.rest.starts_with(']') {
            is_first = false;
            if self.named_class()? {
                continue;
            }
            if let Some(class) = self.rest.strip_prefix('\\').and_then(|rest| rest.chars().next()) {
                if matches!(class, 'p' | 'P') {
                    self.rest = &self.rest[2..];
                    let class = self.unicode_class(class)?;
                    self.out.push_str(&class);
                    continue;
                }
                if let Some((text, is_negated)) = perl_class(class) {
                    self.rest = &self.rest[2..];
                    let sign = if is_negated { "^" } else { "" };
                    self.write(format_args!("[{sign}{text}]"));
                    continue;
                }
            }
            let low = self.class_char().ok_or_else(missing)??;
            push_char(&mut self.out, low);
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.skip("-");
                let high = self.class_char().ok_or_else(missing)??;
                if high < low {
                    return Err(format!("invalid character class range: {low}-{high}"));
                }
                self.out.push('-');
                push_char(&mut self.out, high);
            }
        }
        self.skip("]");
        self.out.push(']');
        Ok(())
    }

    /// Reads `[:name:]`. Returns `false` if the rest does not begin with one.
    fn named_class(&mut self) -> Result<bool, String> {
        let inner = self.rest.strip_prefix("[:");
        let Some((name, rest)) = inner.and_then(|inner| inner.split_once(":]")) else {
            return Ok(false);
        };
        if !CLASSES.contains(&name.strip_prefix('^').unwrap_or(name)) {
            return Err(format!("invalid character class: [:{name}:]"));
        }
        self.write(format_args!("[:{name}:]"));
        self.rest = rest;
        Ok(true)
    }

    fn class_char(&mut self) -> Option<Result<char, String>> {
        let c = self.next()?;
        Some(if c == '\\' { self.escaped_char() } else { Ok(c) })
    }
}

/// Writes a character that stands for itself, inside or outside a class.
fn push_char(out: &mut String, c: char) {
    if c.is_alphanumeric() {
        out.push(c);
    } else {
        write!(out, r"\x{{{:X}}}", u32::from(c)).expect("writing to a string");
    }
}

/// The members of a class like `\d`, and whether the class is negated.
fn perl_class(c: char) -> Option<(&'static str, bool)> {
    let class = match c.to_ascii_lowercase() {
        'd' => "0-9",
        's' => r"\t\n\f\r ",
        'w' => "0-9A-Za-z_",
        _ => return None,
    };
    Some((class, c.is_ascii_uppercase()))
}

/// The numbers of `n}`, `n,}` or `n,m}`, and the text after it. `None` if the text is no
/// repetition.
fn counts(text: &str) -> Option<(u32, Option<u32>, &str)> {
    let (inner, rest) = text.split_once('}')?;
    let number = |digits: &str| {
        let is_number = digits.bytes().all(|c| c.is_ascii_digit());
        let is_plain = digits.len() == 1 || !digits.starts_with('0');
        // A number that does not fit in 32 bits is above the limit in any case.
        (!digits.is_empty() && is_number && is_plain).then(|| digits.parse().unwrap_or(u32::MAX))
    };
    match inner.split_once(',') {
        None => number(inner).map(|low| (low, Some(low), rest)),
        Some((low, "")) => number(low).map(|low| (low, None, rest)),
        Some((low, high)) => {
            number(low).zip(number(high)).map(|(low, high)| (low, Some(high), rest))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An expression, a text that it matches, and a text that it does not match.
    const TAKEN: &[(&str, &str, &str)] = &[
        // Literals and anchors.
        ("gcp", "a-gcp-b", "aws"),
        ("^r[0-9]$", "r7", "r77"),
        (r"\Ar\z", "r", "rr"),
        ("a.c", "abc", "a\nc"),
        ("(?s)a.c", "a\nc", "ac"),
        ("(?m)^b$", "a\nb\nc", "a\nbc"),
        ("^$", "", "x"),
        ("a b#c", "a b#c", "ab"),
        // Case.
        ("(?i)^CLASS[0-9]$", "class7", "klass7"),
        ("(?i:r)X", "RX", "rx"),
        ("(?i)straße", "STRAßE", "strase"),
        ("a(?i)b|c", "C", "A"),
        ("(?i)A(?-i)b", "ab", "aB"),
        // Repetitions.
        ("^ab*c+d?$", "acc", "abd"),
        ("^a{2}$", "aa", "aaa"),
        ("^a{2,}$", "aaa", "a"),
        ("^a{2,3}?$", "aaa", "aaaa"),
        ("(?U)^a+$", "aaa", "b"),
        ("^a+?b??$", "aab", "abb"),
        ("^*a", "a", "b"),
        // Braces and brackets that mean themselves.
        ("{r", "x{r", "r"),
        ("^a{,2}$", "a{,2}", "aa"),
        ("^a{2$", "a{2", "aa"),
        ("^{}$", "{}", ""),
        ("^a{01}$", "a{01}", "a"),
        ("^]}$", "]}", ""),
        // Classes.
        ("^[]a]+$", "]a", "b"),
        ("^[^]a]$", "b", "]"),
        ("^[[a]$", "[", "b"),
        ("^[a&&b]$", "&", "c"),
        ("^[+--]+$", ",", "a"),
        ("^[a~~b]$", "~", "c"),
        ("^[-a]$", "-", "b"),
        ("^[a-]$", "-", "b"),
        ("^[a-c-e]+$", "a-e", "d"),
        ("^[[:alpha:]_]+$", "ab_", "a1"),
        ("^[[:^digit:]]$", "a", "1"),
        ("^[[:word:]]$", "_", "-"),
        ("^[[=a=]]$", "a]", "b"),
        (r"^[\d\-x]+$", "1-x", "a"),
        (r"^[^\D]$", "1", "a"),
        (r"^[\S1]$", "b", " "),
        (r"^[\x41-\x{43}]$", "B", "D"),
        (r"^[\]\\]$", "\\", "a"),
        // Perl's classes are ASCII.
        (r"^\d$", "1", "١"),
        (r"^\w$", "_", "é"),
        (r"^\W$", "é", "e"),
        (r"^\s$", "\t", "\u{b}"),
        (r"^\S\D$", "ab", "a1"),
        (r"\bx\b", "a x b", "axb"),
        (r"a\Bb", "ab", "a b"),
        // Unicode.
        (r"^\pL$", "é", "1"),
        (r"^\p{Greek}$", "λ", "l"),
        (r"^\P{Greek}$", "l", "λ"),
        (r"^\p{^Greek}$", "l", "λ"),
        (r"^\P{^Lu}$", "A", "a"),
        (r"^\p{Uppercase_Letter}$", "A", "a"),
        (r"^[\p{Lu}\d]$", "A", "a"),
        // Escapes.
        (r"^\Qa.b\E$", "a.b", "axb"),
        (r"^\Qa[", "a[", "a"),
        (r"^\Qab\E+$", "abb", "abab"),
        (r"^\.\_\<\-$", "._<-", ".<"),
        (r"^\n\t\a\f\r\v$", "\n\t\u{7}\u{c}\r\u{b}", "n"),
        (r"^\101\x42\x{43}$", "ABC", "AB"),
        (r"^\0$", "\0", "0"),
        (r"^\018$", "\u{1}8", "8"),
        (r"^a\b{start}x", "a{start}x", "ax"),
        // Groups.
        ("^(a|b)+$", "ab", "c"),
        ("^(?:a|b)c$", "ac", "c"),
        ("^(?P<x>a)(?<y>b)$", "ab", "a"),
        ("^(?P<1>a)$", "a", "b"),
        ("^()$", "", "a"),
        ("^(?)a$", "a", "b"),
        ("^(a||b)$", "", "c"),
    ];

    const REFUSED: &[&str] = &[
        "(",
        ")",
        "a)",
        "(a",
        "[a",
        "[]",
        "[z-a]",
        r"[a-\d]",
        "*a",
        "a|*",
        "(*)",
        "a**",
        "a*+",
        "a??+",
        "a{2}{3}",
        "a{1001}",
        "a{2,1}",
        "a{99999999999}",
        "{2}",
        r"a\",
        r"\1",
        r"\8",
        r"(a)\1",
        r"\Z",
        r"\C",
        r"\E",
        r"\G",
        r"\u0041",
        r"\xZ1",
        r"\x4",
        r"\x{110000}",
        r"\x{}",
        r"\x{+4}",
        r"\é",
        r"\pX",
        r"\p{Nope}",
        r"\p{",
        r"[\b]",
        r"[\Qa\E]",
        "(?=a)",
        "(?!a)",
        "(?<=a)",
        "(?<!a)",
        "(?x)a",
        "(?u)a",
        "(?R)a",
        "(?-)a",
        "(?i",
        "(?i-)a",
        "(?P<a>b)(?P<a>c)",
        "(?P<>a)",
        "(?P<a b>c)",
        "(?P=a)",
        "(?>a)",
        "[[:nope:]]",
        "(?P<a",
    ];

    /// F5: an expression that Go accepts is accepted, and means the same.
    #[test]
    fn the_syntax_of_go_is_taken() {
        for (pattern, yes, no) in TAKEN {
            let (regex, _) = compile(pattern).unwrap_or_else(|why| panic!("{pattern}: {why}"));
            assert!(regex.is_match(yes), "{pattern} and {yes:?}: {}", regex.as_str());
            assert!(!regex.is_match(no), "{pattern} and {no:?}: {}", regex.as_str());
        }
        assert!(compile("").is_ok_and(|(regex, _)| regex.is_match("anything")));
    }

    #[test]
    fn a_pattern_that_go_refuses_is_refused() {
        for pattern in REFUSED {
            assert!(compile(pattern).is_err(), "{pattern}");
        }
        assert!(compile("(((a{1000}){1000}){1000})").is_err(), "it would be too large");
    }

    /// Random texts give an error or an expression, never a panic.
    #[test]
    fn any_text_is_taken_or_refused() {
        let signs: Vec<char> = r"a\[]^-:(){}?*+|P<>=,1.$Q E".chars().collect();
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let mut pattern = String::new();
            for _ in 0..8 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let place = usize::try_from(state >> 33).unwrap_or(0) % signs.len();
                pattern.push(signs[place]);
            }
            drop(compile(&pattern));
        }
    }
}
