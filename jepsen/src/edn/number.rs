//! Numbers of other programs, which may be longer than those of JSON's reader.
//!
//! Owns the promise that no two numbers become one: whole numbers of more than 64 bits, and others of which a float does not keep every digit, are
//! kept as texts, as EDN writes them (`18446744073709551616N`, `1.00000000000000000001M`). Never judges.

use serde_json::Value;

/// What is kept of a number: what was read of it, or its text if that was less.
pub(super) fn kept(text: &str, read: Value) -> Value {
    let is_whole = text.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit());
    let loses_nothing = !is_whole && significant(text) == significant(&read.to_string());
    if read.is_i64() || loses_nothing {
        return read;
    }
    let mark = if is_whole { 'N' } else { 'M' };
    format!("{text}{mark}").into()
}

/// The digits of a number without the zeros around them.
fn significant(number: &str) -> String {
    let mantissa = number.split(['e', 'E']).next().unwrap_or(number);
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_matches('0').to_owned()
}

/// A line of JSON in which the numbers that have to be kept as texts are texts.
pub(super) fn quote_long(line: &str) -> String {
    let mut quoted = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(|c: char| matches!(c, '"' | '-' | '0'..='9')) {
        let (before, from) = rest.split_at(at);
        let (token, after) = from.split_at(token_length(from));
        quoted.push_str(before);
        // What is no number of JSON stays as it is, and fails when the line is read.
        let number = serde_json::from_str::<Value>(token).ok().filter(Value::is_number);
        match number.map(|number| kept(token, number)) {
            Some(text @ Value::String(_)) => quoted.push_str(&text.to_string()),
            Some(_) | None => quoted.push_str(token),
        }
        rest = after;
    }
    quoted.push_str(rest);
    quoted
}

/// The length of the string of JSON, quotes included, or of the number with which a text begins.
fn token_length(text: &str) -> usize {
    if !text.starts_with('"') {
        let ends = |c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E');
        return text.find(ends).unwrap_or(text.len());
    }
    // The first quote ends nothing.
    let mut is_escaped = true;
    let end = text.find(|c: char| {
        let ends = c == '"' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        ends
    });
    end.map_or(text.len(), |end| end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_that_would_lose_digits_are_quoted() {
        for same in [
            r#"{"a":-1,"b":[1.5,1.50,1e5,0,-0.0,0.0e7,9223372036854775807]}"#,
            r#"{"18446744073709551617":"\"18446744073709551617","é\\":"-"}"#,
            "[18446744073709551617., 1-2, -, 1e999, nan",
            r#""18446744073709551617"#,
            "",
        ] {
            assert_eq!(quote_long(same), same);
        }
        assert_eq!(
            quote_long(r#"{"a\\":18446744073709551617,"b":[-9223372036854775809, 1e-999],"c":3}"#),
            r#"{"a\\":"18446744073709551617N","b":["-9223372036854775809N", "1e-999M"],"c":3}"#
        );
        assert_eq!(quote_long("1.00000000000000000001"), r#""1.00000000000000000001M""#);
    }
}
