//! Nomad's single-dash long flags: `-json` becomes `--json` before clap sees it.
//!
//! Owns only the spelling of flags. Must never touch a word that is not a known long flag, nor
//! anything after `--`.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// Flags by name (letters too), and whether each takes a value.
pub(crate) type KnownFlags = BTreeMap<String, bool>;

/// All long flags of a command and its subcommands.
pub(crate) fn known_flags(command: &clap::Command) -> KnownFlags {
    let mut known = KnownFlags::from([("help".to_owned(), false), ("version".to_owned(), false)]);
    collect(command, &mut known);
    known
}

fn collect(command: &clap::Command, known: &mut KnownFlags) {
    for argument in command.get_arguments() {
        let takes_value = argument.get_action().takes_values();
        let aliases = argument.get_all_aliases().unwrap_or_default();
        for name in argument.get_long().into_iter().chain(aliases) {
            known.insert(name.to_owned(), takes_value);
        }
        if let Some(letter) = argument.get_short() {
            // The same letter may mean several things: one that takes a value is left as it is.
            *known.entry(letter.to_string()).or_insert(false) |= takes_value;
        }
    }
    for subcommand in command.get_subcommands() {
        collect(subcommand, known);
    }
}

/// Rewrites `-word`, `-word=value` and, for flags without a value, `--word=true|false`.
pub(crate) fn normalise(
    arguments: impl IntoIterator<Item = OsString>,
    known: &KnownFlags,
) -> Vec<OsString> {
    let mut result = Vec::new();
    let mut literal = false;
    for argument in arguments {
        if literal {
            result.push(argument);
        } else if argument == "--" {
            literal = true;
            result.push(argument);
        } else {
            result.extend(normalise_word(argument, known));
        }
    }
    result
}

/// `quorate help job run` as `quorate job run --help`.
pub(crate) fn help_last(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|word| word == "help") {
        arguments.remove(1);
        arguments.push("--help".into());
    }
    arguments
}

fn normalise_word(argument: OsString, known: &KnownFlags) -> Option<OsString> {
    let Some(text) = argument.to_str() else { return Some(argument) };
    let Some(word) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')) else {
        return Some(argument);
    };
    let (name, value) =
        word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
    let takes_value = match known.get(name) {
        Some(takes_value) if name.len() > 1 => *takes_value,
        Some(false) if value == Some("true") => return Some(format!("-{name}").into()),
        Some(false) if value == Some("false") => return None,
        Some(_) | None => return Some(argument),
    };
    match value {
        Some("true") if !takes_value => Some(format!("--{name}").into()),
        Some("false") if !takes_value => None,
        Some(value) => Some(format!("--{name}={value}").into()),
        None => Some(format!("--{name}").into()),
    }
}

/// The parser's words about a flag that it does not know, with the flag as it was typed: the parser
/// takes `-word` for letters.
pub(crate) fn as_typed(text: &str, arguments: &[OsString]) -> String {
    let letter = text.split_once("'-").and_then(|(_, rest)| {
        let mut characters = rest.chars();
        characters.next().filter(|_| characters.next() == Some('\''))
    });
    let Some(letter) = letter else { return text.to_owned() };
    let is_it = |word: &&str| word.strip_prefix('-').is_some_and(|word| word.starts_with(letter));
    let typed = arguments.iter().filter_map(|word| word.to_str()).find(is_it);
    let Some(typed) = typed else { return text.to_owned() };
    let name = typed.split_once('=').map_or(typed, |(name, _)| name);
    text.replace(&format!("'-{letter}'"), &format!("'{name}'"))
        .replace(&format!("-- -{letter}'"), &format!("-- {name}'"))
}

#[cfg(test)]
mod tests {
    use super::{KnownFlags, as_typed, normalise};

    #[track_caller]
    fn check(input: &str, expected: &str) {
        let known = KnownFlags::from([
            ("json".to_owned(), false),
            ("address".to_owned(), true),
            ("tail".to_owned(), false),
            ("n".to_owned(), true),
            ("p".to_owned(), false),
        ]);
        let words = input.split(' ').map(Into::into);
        let result: Vec<String> = normalise(words, &known)
            .into_iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        assert_eq!(result.join(" "), expected);
    }

    #[test]
    fn single_dash_long_flags_become_double_dash() {
        check("quorate job status -json web", "quorate job status --json web");
        check("quorate --json", "quorate --json");
        check("quorate -address=http://a:1 x", "quorate --address=http://a:1 x");
        check("quorate -address http://a:1 x", "quorate --address http://a:1 x");
        check("quorate alloc logs -f -tail -n 5 ab", "quorate alloc logs -f --tail -n 5 ab");
    }

    #[test]
    fn flags_without_value_accept_true_and_false() {
        check("quorate -json=true x", "quorate --json x");
        check("quorate -json=false x", "quorate x");
        check("quorate --json=maybe x", "quorate --json=maybe x");
        check("quorate -p=true x", "quorate -p x");
        check("quorate -p=false x", "quorate x");
    }

    #[test]
    fn an_unknown_flag_is_named_as_it_was_typed() {
        let arguments = ["quorate", "agent", "-dev=true"].map(Into::into);
        let text = "unexpected argument '-d' found\n\n  tip: use '-- -d'";
        let expected = "unexpected argument '-dev' found\n\n  tip: use '-- -dev'";
        assert_eq!(as_typed(text, &arguments), expected);
        let other = "unexpected argument '--x' found";
        assert_eq!(as_typed(other, &arguments), other);
    }

    #[test]
    fn other_words_are_left_alone() {
        check("quorate - -fn -unknown --unknown", "quorate - -fn -unknown --unknown");
        check("quorate run -- -json", "quorate run -- -json");
        check("quorate -n=5", "quorate -n=5");
    }
}
