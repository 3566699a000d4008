//! From text to an expression, by recursive descent.
//!
//! ```text
//!  or     = and { "or" and }
//!  and    = not { "and" not }
//!  not    = "not" not | "(" or ")" | collection | match
//!  collection = ( "any" | "all" ) selector "as" word [ "," word ] "{" or "}"
//!  match  = selector ( "==" | "!=" | ["not"] "contains" | ["not"] "matches" ) value
//!         | selector "is" ["not"] ( "empty" | "nil" )
//!         | value ["not"] "in" selector
//!  selector = word { "." part | "[" text "]" } | '"/pointer"'
//! ```

use scheduler::{Budget, Pattern};

use super::{Collection, DEPTH_MAX, Expression, Names, Operator, Selector, wrong};
use crate::error::Error;

/// One word of the text.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Token {
    /// Letters, digits, `_`, with dots: a selector, a keyword, a number or a bare value.
    Word(String),
    /// In quotes or backticks.
    Text(String),
    Sign(&'static str),
}

struct Parser<'b> {
    /// Tokens and their columns.
    tokens: Vec<(Token, usize)>,
    next: usize,
    /// Column behind the last character.
    end: usize,
    budget: &'b Budget,
}

/// Parses a whole text.
pub(super) fn expression(text: &str, budget: &Budget) -> Result<Expression, Error> {
    let (tokens, end) = tokens(text)?;
    let mut parser = Parser { tokens, next: 0, end, budget };
    let expression = parser.or(0)?;
    match parser.peek() {
        None => Ok(expression),
        Some(_) => Err(wrong(parser.column(), "expected `and`, `or` or the end")),
    }
}

fn tokens(text: &str) -> Result<(Vec<(Token, usize)>, usize), Error> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(&c) = chars.get(at) {
        let column = at + 1;
        let pair = (c, chars.get(at + 1).copied());
        let token = match pair {
            (' ' | '\t' | '\r' | '\n', _) => {
                at += 1;
                continue;
            }
            ('=', Some('=')) => Token::Sign("=="),
            ('!', Some('=')) => Token::Sign("!="),
            ('(', _) => Token::Sign("("),
            (')', _) => Token::Sign(")"),
            ('[', _) => Token::Sign("["),
            (']', _) => Token::Sign("]"),
            ('{', _) => Token::Sign("{"),
            ('}', _) => Token::Sign("}"),
            (',', _) => Token::Sign(","),
            ('"' | '`', _) => {
                let (token, length) = quoted(&chars, at)?;
                tokens.push((token, column));
                at += length;
                continue;
            }
            _ => {
                let length = word_length(&chars, at);
                if length == 0 {
                    return Err(unexpected(&tokens, c, column));
                }
                tokens.push((Token::Word(chars[at..at + length].iter().collect()), column));
                at += length;
                continue;
            }
        };
        at += if matches!(token, Token::Sign("==" | "!=")) { 2 } else { 1 };
        tokens.push((token, column));
    }
    Ok((tokens, chars.len() + 1))
}

/// Length of the word that begins at a character, 0 when none does: a minus begins a number, unless
/// it stands in a word.
fn word_length(chars: &[char], at: usize) -> usize {
    let length = |at: usize| chars[at..].iter().take_while(|c| is_word(**c)).count();
    let in_word = at > 0 && is_word(chars[at - 1]);
    if chars[at] == '-' && !in_word && chars.get(at + 1).is_some_and(char::is_ascii_digit) {
        1 + length(at + 1)
    } else {
        length(at)
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.' || c == '/'
}

/// A character that begins nothing: where a value may go on, it needed quotes.
fn unexpected(before: &[(Token, usize)], c: char, column: usize) -> Error {
    let in_value = matches!(before, [.., (Token::Sign("==" | "!="), _), (Token::Word(_), _)]);
    if in_value {
        wrong(column, format!("`{c}` can only be in a value that is written in quotes"))
    } else {
        wrong(
            column,
            format!(
                "expected an operator (==, !=, in, contains, matches, is empty, is nil), not `{c}`"
            ),
        )
    }
}

/// A text in quotes with escapes, or in backticks as it is, and how many characters it takes.
fn quoted(chars: &[char], start: usize) -> Result<(Token, usize), Error> {
    let quote = chars[start];
    let mut text = String::new();
    let mut at = start + 1;
    loop {
        match chars.get(at) {
            None => return Err(wrong(start + 1, "this text is never closed")),
            Some(c) if *c == quote => return Ok((Token::Text(text), at + 1 - start)),
            Some('\\') if quote == '"' => {
                let escaped = match chars.get(at + 1) {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some('r') => '\r',
                    Some(c @ ('"' | '\\')) => *c,
                    _ => {
                        return Err(wrong(
                            at + 1,
                            "unknown escape: write \\\\ for a backslash, or the text in backticks",
                        ));
                    }
                };
                text.push(escaped);
                at += 2;
            }
            Some(c) => {
                text.push(*c);
                at += 1;
            }
        }
    }
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|(token, _)| token)
    }

    /// Column of the next token.
    fn column(&self) -> usize {
        self.tokens.get(self.next).map_or(self.end, |(_, column)| *column)
    }

    fn take(&mut self, expected: &Token) -> bool {
        let found = self.peek() == Some(expected);
        self.next += usize::from(found);
        found
    }

    fn word(&mut self, expected: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(word)) if word == expected);
        self.next += usize::from(found);
        found
    }

    fn or(&mut self, depth: usize) -> Result<Expression, Error> {
        let mut left = self.and(depth)?;
        while self.word("or") {
            left = Expression::Or(Box::new(left), Box::new(self.and(depth)?));
        }
        Ok(left)
    }

    fn and(&mut self, depth: usize) -> Result<Expression, Error> {
        let mut left = self.not(depth)?;
        while self.word("and") {
            left = Expression::And(Box::new(left), Box::new(self.not(depth)?));
        }
        Ok(left)
    }

    fn not(&mut self, depth: usize) -> Result<Expression, Error> {
        let column = self.column();
        if depth > DEPTH_MAX - 1 {
            return Err(wrong(column, "too deep: simplify the parentheses"));
        }
        if self.word("not") {
            return Ok(Expression::Not(Box::new(self.not(depth + 1)?)));
        }
        if self.take(&Token::Sign("(")) {
            let inside = self.or(depth + 1)?;
            if !self.take(&Token::Sign(")")) {
                return Err(wrong(self.column(), "expected `and`, `or` or `)`"));
            }
            return Ok(inside);
        }
        if self.is_collection() {
            return self.collection(depth + 1);
        }
        self.comparison()
    }

    /// Whether `any` or `all` and a selector come next: both can also name a field.
    fn is_collection(&self) -> bool {
        let word = |at: usize| match self.tokens.get(self.next + at) {
            Some((Token::Word(word), _)) => Some(word.as_str()),
            Some((Token::Text(_) | Token::Sign(_), _)) | None => None,
        };
        let is_selector =
            !matches!(self.tokens.get(self.next + 1), Some((Token::Sign(_), _)) | None);
        matches!(word(0), Some("any" | "all"))
            && is_selector
            && !matches!(word(1), Some("is" | "in" | "not" | "contains" | "matches"))
    }

    fn collection(&mut self, depth: usize) -> Result<Expression, Error> {
        let every = self.word("all");
        self.next += usize::from(!every);
        let selector = self.selector()?;
        if !self.word("as") {
            return Err(wrong(self.column(), "expected `as` and a name for what is in it"));
        }
        let first = self.name()?;
        let names = if self.take(&Token::Sign(",")) {
            let column = self.column();
            let second = self.name()?;
            if first.is_some() && first == second {
                return Err(wrong(column, "one name cannot be both the key and the value"));
            }
            Names::KeyAndValue(first, second)
        } else {
            Names::One(first)
        };
        if !self.take(&Token::Sign("{")) {
            return Err(wrong(self.column(), "expected `{`"));
        }
        let inside = self.or(depth)?;
        if !self.take(&Token::Sign("}")) {
            return Err(wrong(self.column(), "expected `and`, `or` or `}`"));
        }
        let collection = Collection { every, selector, names, inside };
        Ok(Expression::Collection(Box::new(collection)))
    }

    /// A name that `any` or `all` gives, none for `_`.
    fn name(&mut self) -> Result<Option<String>, Error> {
        let column = self.column();
        let name = match self.peek() {
            Some(Token::Word(word)) if !word.contains(['.', '/']) => word.clone(),
            Some(Token::Word(_) | Token::Text(_) | Token::Sign(_)) | None => {
                return Err(wrong(column, "expected a name for what is in it"));
            }
        };
        self.next += 1;
        Ok((name != "_").then_some(name))
    }

    fn comparison(&mut self) -> Result<Expression, Error> {
        if self.is_value_in() {
            let value = self.value()?;
            let negated = self.word("not");
            self.word("in");
            let selector = self.selector()?;
            let operator =
                if negated { Operator::DoesNotContain(value) } else { Operator::Contains(value) };
            return Ok(Expression::Match(selector, operator));
        }
        let selector = self.selector()?;
        let operator = self.operator()?;
        Ok(Expression::Match(selector, operator))
    }

    /// Whether a value and `in` or `not in` come next.
    fn is_value_in(&self) -> bool {
        let is = |at: usize, expected: &str| matches!(self.tokens.get(self.next + at), Some((Token::Word(word), _)) if word == expected);
        is(1, "in") || (is(1, "not") && is(2, "in"))
    }

    fn operator(&mut self) -> Result<Operator, Error> {
        let column = self.column();
        if self.take(&Token::Sign("==")) {
            return Ok(Operator::Equals(self.value()?));
        }
        if self.take(&Token::Sign("!=")) {
            return Ok(Operator::DoesNotEqual(self.value()?));
        }
        if self.word("is") {
            let negated = self.word("not");
            return if self.word("empty") {
                Ok(if negated { Operator::IsNotEmpty } else { Operator::IsEmpty })
            } else if self.word("nil") {
                Ok(if negated { Operator::IsNotNil } else { Operator::IsNil })
            } else {
                Err(wrong(self.column(), "expected `empty` or `nil`"))
            };
        }
        let negated = self.word("not");
        if self.word("contains") {
            let value = self.value()?;
            return Ok(if negated {
                Operator::DoesNotContain(value)
            } else {
                Operator::Contains(value)
            });
        }
        if self.word("matches") {
            let column = self.column();
            let pattern = self.value()?;
            let pattern = Pattern::compile(&pattern).map_err(|error| wrong(column, error))?;
            let pattern = pattern.charge(self.budget).map_err(|spent| wrong(column, spent))?;
            return Ok(if negated {
                Operator::DoesNotMatch(pattern)
            } else {
                Operator::Matches(pattern)
            });
        }
        let expected = "an operator (==, !=, in, contains, matches, is empty, is nil)";
        let expected = if negated { "`in`, `contains` or `matches`" } else { expected };
        Err(wrong(if negated { self.column() } else { column }, format!("expected {expected}")))
    }

    fn value(&mut self) -> Result<String, Error> {
        let column = self.column();
        let value = match self.peek() {
            Some(Token::Word(text) | Token::Text(text)) => text.clone(),
            Some(Token::Sign(_)) | None => return Err(wrong(column, "expected a value")),
        };
        self.next += 1;
        Ok(value)
    }

    fn selector(&mut self) -> Result<Selector, Error> {
        let column = self.column();
        let expected = || wrong(column, "expected a field, like Status or Meta[\"rack\"]");
        let mut path: Vec<String> = match self.peek() {
            Some(Token::Text(pointer)) if pointer.starts_with('/') => {
                let parts = pointer.split('/').skip(1);
                parts.map(|part| part.replace("~1", "/").replace("~0", "~")).collect()
            }
            Some(Token::Word(word)) => word.split('.').map(str::to_owned).collect(),
            Some(Token::Text(_) | Token::Sign(_)) | None => return Err(expected()),
        };
        self.next += 1;
        while self.take(&Token::Sign("[")) {
            path.push(self.value()?);
            if !self.take(&Token::Sign("]")) {
                return Err(wrong(self.column(), "expected `]`"));
            }
            // `Meta["a"].b`: the rest is a word that begins with a dot.
            let rest = match self.peek() {
                Some(Token::Word(word)) => word.strip_prefix('.').map(str::to_owned),
                _ => None,
            };
            if let Some(rest) = rest {
                path.extend(rest.split('.').map(str::to_owned));
                self.next += 1;
            }
        }
        if path.iter().any(String::is_empty) {
            return Err(expected());
        }
        Ok(Selector { path, column })
    }
}
