//! The language of constraints against a second, simpler reading of each rule: 2,000 random
//! comparisons.

use std::{cmp::Ordering, collections::BTreeSet};

use chance::Dice;
use fsm::{Node, job::Constraint};

use super::node;
use crate::place::{constraint::Condition, pattern::Budget};

const ROUNDS: u64 = 500;

/// Whether a node whose attribute `x` is `left` meets the constraint.
fn meets(left: &str, operand: &str, right: &str) -> bool {
    let mut row: Node = node(1);
    let mut description = (*row.description).clone();
    description.attributes.insert("x".into(), left.into());
    row.description = description.into();
    let constraint =
        Constraint { left: "${attr.x}".into(), operand: operand.into(), right: right.into() };
    Condition::compile(&constraint).met_by(&row, &Budget::new(Budget::OF_PASS))
}

fn pick<'a, T>(dice: &mut Dice, from: &'a [T]) -> &'a T {
    &from[usize::try_from(dice.below(from.len() as u64)).unwrap()]
}

/// A version in parts, and one of the ways to write it.
struct Written {
    numbers: Vec<u64>,
    pre: Vec<&'static str>,
    text: String,
}

fn written(dice: &mut Dice, is_strict: bool) -> Written {
    let numbers: Vec<u64> = (0..=dice.below(4)).map(|_| dice.below(3)).collect();
    let words = ["alpha", "beta", "rc", "1", "2", "10"];
    let pre: Vec<_> = (0..dice.below(3)).map(|_| *pick(dice, &words)).collect();
    let mut text = if dice.below(4) == 0 { "v".to_owned() } else { String::new() };
    let zero = |dice: &mut Dice| if dice.below(5) == 0 { "0" } else { "" };
    let parts: Vec<_> = numbers.iter().map(|part| format!("{}{part}", zero(dice))).collect();
    text += &parts.join(".");
    if let Some(first) = pre.first() {
        let is_word = !first.starts_with(|c: char| c.is_ascii_digit());
        text += if is_word && !is_strict && dice.below(3) == 0 { "" } else { "-" };
        text += &pre.join(".");
    }
    if dice.below(4) == 0 {
        text += "+build.7";
    }
    Written { numbers, pre, text }
}

/// The order of two parts of pre-releases, as a table of their kinds: missing, number, word.
fn parts(left: Option<&str>, right: Option<&str>) -> Ordering {
    let kind =
        |part: Option<&str>| part.map_or(0, |part| if part.parse::<u64>().is_ok() { 1 } else { 2 });
    let table = [
        [Ordering::Equal, Ordering::Less, Ordering::Greater],
        [Ordering::Greater, Ordering::Equal, Ordering::Less],
        [Ordering::Less, Ordering::Greater, Ordering::Equal],
    ];
    let number = |part: Option<&str>| part.unwrap_or("").parse::<u64>().unwrap_or(0);
    let by_kind = table[kind(left)][kind(right)];
    by_kind.then(number(left).cmp(&number(right))).then_with(|| match kind(left) {
        2 => left.cmp(&right),
        _ => Ordering::Equal,
    })
}

fn padded(version: &Written) -> Vec<u64> {
    let mut numbers = version.numbers.clone();
    while numbers.len() < 3 {
        numbers.push(0);
    }
    numbers
}

fn order(left: &Written, right: &Written) -> Ordering {
    let (a, b) = (padded(left), padded(right));
    let is_same_length = a.len() == b.len();
    let value = |numbers: &[u64]| {
        (0..4).fold(0, |sum, place| sum * 100 + numbers.get(place).copied().unwrap_or(0))
    };
    let by_number = value(&a).cmp(&value(&b));
    if by_number.is_ne() || !is_same_length {
        return by_number;
    }
    match (left.pre.is_empty(), right.pre.is_empty()) {
        (true, true) => return Ordering::Equal,
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    (0..2).fold(Ordering::Equal, |sum, place| {
        sum.then(parts(left.pre.get(place).copied(), right.pre.get(place).copied()))
    })
}

/// F5: versions of 1 to 4 parts with pre-releases, by both operands.
#[test]
fn versions_agree_with_a_table() {
    for operand in ["version", "semver"] {
        let is_strict = operand == "semver";
        let mut dice = Dice::named(5, operand);
        for _ in 0..ROUNDS {
            let (have, limit) = (written(&mut dice, false), written(&mut dice, is_strict));
            let signs = ["=", "", "!=", ">", "<", ">=", "<="];
            let sign = *pick(&mut dice, &signs);
            let order = order(&have, &limit);
            let holds = match sign {
                "!=" => order.is_ne(),
                ">" => order.is_gt(),
                "<" => order.is_lt(),
                ">=" => order.is_ge(),
                "<=" => order.is_le(),
                _ => order.is_eq(),
            };
            let is_order = sign.starts_with(['<', '>']);
            let is_refused = is_order
                && !have.pre.is_empty()
                && (limit.pre.is_empty() || padded(&have) != padded(&limit));
            let expected = holds && (is_strict || !is_refused);
            let right = format!("{sign} {}", limit.text);
            assert_eq!(
                meets(&have.text, operand, &right),
                expected,
                "{} {operand} {right}",
                have.text
            );
        }
    }
}

/// F5: lists in any spelling against sets.
#[test]
fn lists_agree_with_sets() {
    let mut dice = Dice::named(5, "sets");
    let words = ["avx", "sse4", "aes", "neon", "sve"];
    for _ in 0..ROUNDS {
        let list = |dice: &mut Dice| {
            let all: Vec<&str> = (0..=dice.below(4)).map(|_| *pick(dice, &words)).collect();
            let blank = |dice: &mut Dice| if dice.below(3) == 0 { " " } else { "" };
            let written = all.iter().map(|word| format!("{}{word}{}", blank(dice), blank(dice)));
            let written: Vec<_> = written.collect();
            (all.into_iter().collect::<BTreeSet<_>>(), written.join(","))
        };
        let ((have, left), (want, right)) = (list(&mut dice), list(&mut dice));
        assert_eq!(meets(&left, "set_contains", &right), want.is_subset(&have), "{left} {right}");
        assert_eq!(meets(&left, "set_contains_all", &right), want.is_subset(&have));
        assert_eq!(
            meets(&left, "set_contains_any", &right),
            !want.is_disjoint(&have),
            "{left} {right}"
        );
    }
}

/// A regular expression as a tree.
enum Tree {
    /// One of these characters, as they are written.
    One(&'static [char], &'static str),
    Then(Box<Tree>, Box<Tree>),
    Or(Box<Tree>, Box<Tree>),
    /// Between two counts.
    Times(Box<Tree>, usize, usize, &'static str),
}

const LETTERS: &[char] = &['a', 'b', '{', '1', '&'];

fn tree(dice: &mut Dice, depth: u64) -> Tree {
    let all: [(&'static [char], &'static str); 11] = [
        (&['a'], "a"),
        (&['a', 'A'], "(?i:A)"),
        (&['{'], "{"),
        (&['{'], r"\x7B"),
        (&['{', '1'], r"[{\d]"),
        (&['a', 'b'], "[a-b]"),
        (&['&', 'a'], "[a&&]"),
        (&['&'], r"\Q&\E"),
        (LETTERS, "."),
        (&['1'], r"\d"),
        (&['{', '&'], r"\W"),
    ];
    match dice.below(if depth == 0 { 1 } else { 4 }) {
        0 => {
            let (of, text) = *pick(dice, &all);
            Tree::One(of, text)
        }
        1 => Tree::Then(tree(dice, depth - 1).into(), tree(dice, depth - 1).into()),
        2 => Tree::Or(tree(dice, depth - 1).into(), tree(dice, depth - 1).into()),
        _ => {
            let all = [
                (0, 9, "*"),
                (1, 9, "+?"),
                (0, 1, "?"),
                (2, 2, "{2}"),
                (1, 2, "{1,2}"),
                (2, 9, "{2,}"),
            ];
            let (low, high, text) = *pick(dice, &all);
            Tree::Times(tree(dice, depth - 1).into(), low, high, text)
        }
    }
}

impl Tree {
    fn text(&self) -> String {
        match self {
            Self::One(_, text) => (*text).to_owned(),
            Self::Then(one, other) => format!("{}{}", one.text(), other.text()),
            Self::Or(one, other) => format!("(?:{}|{})", one.text(), other.text()),
            Self::Times(one, _, _, text) => format!("(?:{}){text}", one.text()),
        }
    }

    /// Where it may end when it begins at `from`.
    fn ends(&self, text: &[char], from: usize) -> BTreeSet<usize> {
        match self {
            Self::One(of, _) => {
                text.get(from).filter(|c| of.contains(c)).map(|_| from + 1).into_iter().collect()
            }
            Self::Then(one, other) => {
                one.ends(text, from).into_iter().flat_map(|at| other.ends(text, at)).collect()
            }
            Self::Or(one, other) => &one.ends(text, from) | &other.ends(text, from),
            Self::Times(one, low, high, _) => {
                let mut at = BTreeSet::from([from]);
                let mut all = BTreeSet::new();
                for count in 0..=*high {
                    if count >= *low {
                        all.extend(&at);
                    }
                    at = at.into_iter().flat_map(|at| one.ends(text, at)).collect();
                }
                all
            }
        }
    }
}

/// F5: expressions in Go's spelling against a matcher of sets of places.
#[test]
fn expressions_agree_with_a_matcher_of_places() {
    let mut dice = Dice::named(5, "expressions");
    let mut met = 0;
    for _ in 0..ROUNDS {
        let tree = tree(&mut dice, 3);
        let text: Vec<char> = (0..dice.below(6)).map(|_| *pick(&mut dice, LETTERS)).collect();
        let expected = tree.ends(&text, 0).contains(&text.len());
        let pattern = format!("^(?:{})$", tree.text());
        let text: String = text.into_iter().collect();
        assert_eq!(meets(&text, "regexp", &pattern), expected, "{text:?} {pattern}");
        met += u32::from(expected);
    }
    assert!(met > 20, "{met} of {ROUNDS} match");
}
