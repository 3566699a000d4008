//! Constraints, compiled once per pass: targets that are read from a node, and operands that
//! compare them.
//!
//! An operand or target that is not understood is never met: a typo must not place anything.

use std::{borrow::Cow, cell::RefCell, cmp::Ordering, collections::BTreeMap};

use fsm::{Node, Text, job::Constraint};

use crate::{place::pattern, place::pattern::Budget, place::version::Requirement};

/// What `${…}` may name of a node, besides `attr.NAME` and `meta.NAME`.
pub const NODE_TARGETS: [&str; 5] =
    ["node.unique.id", "node.unique.name", "node.datacenter", "node.class", "node.pool"];

/// Longest text of a constraint in a reason, bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Literal(Text),
    NodeId,
    NodeName,
    Datacenter,
    Class,
    Pool,
    Attribute(Text),
    Meta(Text),
    /// `${…}` of an unknown kind.
    Unknown,
}

impl Target {
    pub(crate) fn parse(text: &Text) -> Self {
        let Some(name) = text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) else {
            return if text.starts_with("${") {
                Self::Unknown
            } else {
                Self::Literal(text.clone())
            };
        };
        match name {
            "node.unique.id" => Self::NodeId,
            "node.unique.name" => Self::NodeName,
            "node.datacenter" => Self::Datacenter,
            "node.class" => Self::Class,
            "node.pool" => Self::Pool,
            _ => match name.split_once('.') {
                // `${meta.a}-${meta.b}` is no target.
                _ if name.contains('}') => Self::Unknown,
                Some(("attr", key)) if !key.is_empty() => Self::Attribute(key.into()),
                Some(("meta", key)) if !key.is_empty() => Self::Meta(key.into()),
                Some(_) | None => Self::Unknown,
            },
        }
    }

    /// The value on `node`, if it has one.
    pub(crate) fn read<'n>(&'n self, node: &'n Node) -> Option<Cow<'n, str>> {
        let description = &*node.description;
        let text: &str = match self {
            Self::Literal(text) => text,
            Self::NodeId => return Some(Cow::Owned(node.id.to_string())),
            Self::NodeName => &description.name,
            Self::Datacenter => &description.datacenter,
            Self::Class => &description.class,
            Self::Pool => &description.pool,
            Self::Attribute(key) => description.attributes.get(key)?,
            Self::Meta(key) => description.meta.get(key)?,
            Self::Unknown => return None,
        };
        Some(Cow::Borrowed(text))
    }

    /// Whether nodes of one class may differ in it.
    fn is_unique(&self) -> bool {
        match self {
            Self::NodeId | Self::NodeName => true,
            Self::Attribute(key) | Self::Meta(key) => key.starts_with("unique."),
            Self::Literal(_) | Self::Datacenter | Self::Class | Self::Pool | Self::Unknown => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    IsSet,
    IsNotSet,
    Version,
    Semver,
    Regexp,
    SetContainsAll,
    SetContainsAny,
    DistinctHosts,
    DistinctProperty,
    Unknown,
}

impl Operand {
    fn parse(text: &str) -> Self {
        match text {
            "=" | "==" | "is" | "" => Self::Equal,
            "!=" | "not" => Self::NotEqual,
            "<" => Self::Less,
            "<=" => Self::LessOrEqual,
            ">" => Self::Greater,
            ">=" => Self::GreaterOrEqual,
            "is_set" => Self::IsSet,
            "is_not_set" => Self::IsNotSet,
            "version" => Self::Version,
            "semver" => Self::Semver,
            "regexp" => Self::Regexp,
            "set_contains" | "set_contains_all" => Self::SetContainsAll,
            "set_contains_any" => Self::SetContainsAny,
            "distinct_hosts" => Self::DistinctHosts,
            "distinct_property" => Self::DistinctProperty,
            _ => Self::Unknown,
        }
    }
}

/// A requirement that concerns the other allocations of a job, not the node alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Distinct {
    /// At most one allocation per node.
    Hosts,
    /// Switched off with `false`.
    Off,
    /// At most `max` allocations per value of `target`.
    Property { target: Target, max: u32 },
}

/// A right side that is compiled once per value.
enum Pattern {
    Regex(pattern::Pattern),
    Version(Requirement),
    /// Does not compile: never matches.
    Broken,
}

impl Pattern {
    /// The pattern of an operand that has one, or why the text is none.
    fn compile(operand: Operand, text: &str) -> Result<Option<Self>, String> {
        let pattern = match operand {
            Operand::Regexp => Self::Regex(pattern::Pattern::compile(text)?),
            Operand::Version => Self::Version(Requirement::version(text)?),
            Operand::Semver => Self::Version(Requirement::semver(text)?),
            Operand::Equal
            | Operand::NotEqual
            | Operand::Less
            | Operand::LessOrEqual
            | Operand::Greater
            | Operand::GreaterOrEqual
            | Operand::IsSet
            | Operand::IsNotSet
            | Operand::SetContainsAll
            | Operand::SetContainsAny
            | Operand::DistinctHosts
            | Operand::DistinctProperty
            | Operand::Unknown => return Ok(None),
        };
        Ok(Some(pattern))
    }

    /// Charges for a pattern that was compiled for a pass.
    fn charge(self, budget: &Budget) -> Self {
        match self {
            Self::Regex(regex) => regex.charge(budget).map_or(Self::Broken, Self::Regex),
            Self::Version(_) | Self::Broken => self,
        }
    }

    /// Where the budget is used up nothing matches.
    fn matches(&self, text: &str, budget: &Budget) -> bool {
        match self {
            Self::Regex(regex) => regex.is_match(text, budget).unwrap_or(false),
            Self::Version(requirement) => requirement.met_by(text),
            Self::Broken => false,
        }
    }
}

/// Whether `text` is `${…}` of something that nodes have. False also of a literal.
pub fn is_target(text: &str) -> bool {
    !matches!(Target::parse(&text.into()), Target::Unknown | Target::Literal(_))
}

/// Why `right` cannot be the pattern of `operand`, be it a regular expression or a condition on
/// versions.
pub fn pattern_problem(operand: &str, right: &str) -> Option<String> {
    Pattern::compile(Operand::parse(operand), right).err()
}

/// A compiled constraint.
pub(crate) struct Condition {
    left: Target,
    operand: Operand,
    right: Target,
    /// By right side; more than one entry only when the right side is read from nodes.
    patterns: RefCell<BTreeMap<String, Pattern>>,
    /// As users wrote it, cut at [`TEXT_BYTES_MAX`].
    text: Text,
}

impl Condition {
    pub(crate) fn compile(constraint: &Constraint) -> Self {
        Self {
            left: Target::parse(&constraint.left),
            operand: Operand::parse(&constraint.operand),
            right: Target::parse(&constraint.right),
            patterns: RefCell::new(BTreeMap::new()),
            text: text_of(constraint),
        }
    }

    /// The requirement on other allocations, if it is one.
    pub(crate) fn distinct(constraint: &Constraint) -> Option<Distinct> {
        match Operand::parse(&constraint.operand) {
            Operand::DistinctHosts if &*constraint.right == "false" => Some(Distinct::Off),
            Operand::DistinctHosts => Some(Distinct::Hosts),
            Operand::DistinctProperty => {
                let max = if constraint.right.is_empty() {
                    1
                } else {
                    constraint.right.trim().parse().unwrap_or(0)
                };
                Some(Distinct::Property { target: Target::parse(&constraint.left), max })
            }
            Operand::Equal
            | Operand::NotEqual
            | Operand::Less
            | Operand::LessOrEqual
            | Operand::Greater
            | Operand::GreaterOrEqual
            | Operand::IsSet
            | Operand::IsNotSet
            | Operand::Version
            | Operand::Semver
            | Operand::Regexp
            | Operand::SetContainsAll
            | Operand::SetContainsAny
            | Operand::Unknown => None,
        }
    }

    /// Why it is not met.
    pub(crate) fn reason(&self, budget: &Budget) -> Text {
        if self.operand == Operand::Regexp && budget.is_spent() {
            return format!("{}: {}", self.text, pattern::Spent).into();
        }
        self.text.clone()
    }

    /// Whether nodes of one class may differ in the answer.
    pub(crate) fn is_unique(&self) -> bool {
        self.left.is_unique() || self.right.is_unique()
    }

    /// Nothing that matches a pattern is met once the budget is used up.
    pub(crate) fn met_by(&self, node: &Node, budget: &Budget) -> bool {
        let left = self.left.read(node);
        let right = self.right.read(node);
        match self.operand {
            Operand::IsSet => left.is_some(),
            Operand::IsNotSet => left.is_none(),
            // Something that is missing differs from everything, also from another missing thing's
            // name.
            Operand::NotEqual => left != right,
            Operand::Unknown | Operand::DistinctHosts | Operand::DistinctProperty => false,
            Operand::Equal
            | Operand::Less
            | Operand::LessOrEqual
            | Operand::Greater
            | Operand::GreaterOrEqual
            | Operand::Version
            | Operand::Semver
            | Operand::Regexp
            | Operand::SetContainsAll
            | Operand::SetContainsAny => match (left, right) {
                (Some(left), Some(right)) => self.compare(&left, &right, budget),
                (None, _) | (_, None) => false,
            },
        }
    }

    fn compare(&self, left: &str, right: &str, budget: &Budget) -> bool {
        match self.operand {
            Operand::Equal => left == right,
            Operand::NotEqual => left != right,
            Operand::Less => order(left, right) == Some(Ordering::Less),
            Operand::LessOrEqual => order(left, right).is_some_and(Ordering::is_le),
            Operand::Greater => order(left, right) == Some(Ordering::Greater),
            Operand::GreaterOrEqual => order(left, right).is_some_and(Ordering::is_ge),
            Operand::Version | Operand::Semver | Operand::Regexp => {
                let mut patterns = self.patterns.borrow_mut();
                if !patterns.contains_key(right) {
                    let pattern = Pattern::compile(self.operand, right).ok().flatten();
                    let pattern = pattern.unwrap_or(Pattern::Broken).charge(budget);
                    patterns.insert(right.to_owned(), pattern);
                }
                patterns.get(right).is_some_and(|pattern| pattern.matches(left, budget))
            }
            Operand::SetContainsAll => {
                let have: Vec<_> = left.split(',').map(str::trim).collect();
                right.split(',').all(|want| have.contains(&want.trim()))
            }
            Operand::SetContainsAny => {
                let have: Vec<_> = left.split(',').map(str::trim).collect();
                right.split(',').any(|want| have.contains(&want.trim()))
            }
            Operand::IsSet
            | Operand::IsNotSet
            | Operand::DistinctHosts
            | Operand::DistinctProperty
            | Operand::Unknown => false,
        }
    }
}

/// A constraint in words, as reasons name it: a constraint may have half a megabyte, and each
/// evaluation that it leaves without nodes keeps it twice.
fn text_of(constraint: &Constraint) -> Text {
    let text = format!("{} {} {}", constraint.left, constraint.operand, constraint.right);
    let text = text.trim();
    if text.len() <= TEXT_BYTES_MAX {
        return text.into();
    }
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    format!("{}…", &text[..end]).into()
}

/// As integers, else as decimal numbers, else as text.
fn order(left: &str, right: &str) -> Option<Ordering> {
    if let (Ok(left), Ok(right)) = (left.parse::<i64>(), right.parse::<i64>()) {
        return Some(left.cmp(&right));
    }
    if let (Ok(left), Ok(right)) = (left.parse::<f64>(), right.parse::<f64>()) {
        return left.partial_cmp(&right);
    }
    Some(left.cmp(right))
}
