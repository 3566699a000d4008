//! Constraints, compiled once per pass. A constraint has a left and a right target, and an operand
//! that compares them. A target is a literal text or a property of the node.
//!
//! A constraint with an unknown operand or target is never met: a typo must not place an instance
//! on a wrong node.

use std::{borrow::Cow, cell::RefCell, cmp::Ordering, collections::BTreeMap};

use fsm::{Node, Text, job::Constraint};

use crate::place::{
    pattern::{self, Budget},
    version::Requirement,
};

/// The names that `${…}` may use for a property of a node, besides `attr.NAME` and `meta.NAME`.
pub const NODE_TARGETS: [&str; 5] =
    ["node.unique.id", "node.unique.name", "node.datacenter", "node.class", "node.pool"];

/// Longest text of a constraint in a metrics reason, bytes.
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
    /// `${…}` with an unknown name. It has no value on any node.
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
                // A text such as `${meta.a}-${meta.b}` also begins with `${` and ends with `}`, but
                // is not a target.
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

    /// Whether two nodes of one computed class may have different values of it.
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

/// A constraint on where the other allocations of the job run, not on the node alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Distinct {
    /// At most one allocation per node.
    Hosts,
    /// `distinct_hosts` that is switched off with `false`.
    Off,
    /// At most `max` allocations per value of `target`.
    Property { target: Target, max: u32 },
}

/// The right side of a constraint whose operand needs compilation. Each distinct text is compiled
/// once.
enum Pattern {
    Regex(pattern::Pattern),
    Version(Requirement),
    /// The text does not compile, or the budget is spent. It never matches.
    Broken,
}

impl Pattern {
    /// Compiles the right side of an operand. `None`: the operand has no pattern. The error says
    /// what is wrong with the text.
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

    /// Charges the budget for the compilation of the pattern.
    fn charge(self, budget: &Budget) -> Self {
        match self {
            Self::Regex(regex) => regex.charge(budget).map_or(Self::Broken, Self::Regex),
            Self::Version(_) | Self::Broken => self,
        }
    }

    /// Whether `text` matches; `false` if the budget is spent.
    fn matches(&self, text: &str, budget: &Budget) -> bool {
        match self {
            Self::Regex(regex) => regex.is_match(text, budget).unwrap_or(false),
            Self::Version(requirement) => requirement.met_by(text),
            Self::Broken => false,
        }
    }
}

/// Whether `text` is a `${…}` target that nodes can have. `false` for a literal.
pub fn is_target(text: &str) -> bool {
    !matches!(Target::parse(&text.into()), Target::Unknown | Target::Literal(_))
}

/// Why `right` is not a valid regular expression or version condition for `operand`. `None` if it
/// is valid, or if the operand takes any text.
pub fn pattern_problem(operand: &str, right: &str) -> Option<String> {
    Pattern::compile(Operand::parse(operand), right).err()
}

/// A compiled constraint.
pub(crate) struct Condition {
    left: Target,
    operand: Operand,
    right: Target,
    /// Compiled patterns by right side. There is more than one only if the right side is read from
    /// nodes.
    patterns: RefCell<BTreeMap<String, Pattern>>,
    /// The constraint as users wrote it, cut at [`TEXT_BYTES_MAX`].
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

    /// The `distinct_hosts` or `distinct_property` requirement. `None` for any other operand.
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

    /// The reason in metrics when it is not met.
    pub(crate) fn reason(&self, budget: &Budget) -> Text {
        if self.operand == Operand::Regexp && budget.is_spent() {
            return format!("{}: {}", self.text, pattern::Spent).into();
        }
        self.text.clone()
    }

    /// Whether the answer may differ between two nodes of one computed class.
    pub(crate) fn is_unique(&self) -> bool {
        self.left.is_unique() || self.right.is_unique()
    }

    /// Whether `node` meets the constraint. A constraint with a pattern is never met once the
    /// budget is spent.
    pub(crate) fn met_by(&self, node: &Node, budget: &Budget) -> bool {
        let left = self.left.read(node);
        let right = self.right.read(node);
        match self.operand {
            Operand::IsSet => left.is_some(),
            Operand::IsNotSet => left.is_none(),
            // A missing value differs from every value. Two missing values are equal.
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

/// The text of a constraint for reasons. It is cut, because a constraint may have half a megabyte,
/// and each evaluation that fails for it stores the text twice.
fn text_of(constraint: &Constraint) -> Text {
    let text = format!("{} {} {}", constraint.left, constraint.operand, constraint.right);
    let text = text.trim();
    if text.len() <= TEXT_BYTES_MAX {
        return text.into();
    }
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    format!("{}…", &text[..end]).into()
}

/// Compares two values as integers; if that fails, as decimal numbers; if that fails too, as text.
fn order(left: &str, right: &str) -> Option<Ordering> {
    if let (Ok(left), Ok(right)) = (left.parse::<i64>(), right.parse::<i64>()) {
        return Some(left.cmp(&right));
    }
    if let (Ok(left), Ok(right)) = (left.parse::<f64>(), right.parse::<f64>()) {
        return left.partial_cmp(&right);
    }
    Some(left.cmp(right))
}
