//! Filter expressions of lists, in Nomad's language (bexpr).
//!
//! ```text
//!  ClientStatus == "running" and not (Meta["rack"] is empty or Name matches "^web")
//! ```
//!
//! A selector names a field of the object that the list shows, or of the full object if the list
//! shows less. The first part of a selector must be a field. A key that a map lacks equals nothing,
//! is in nothing, and is empty. `any Groups as g { g.Name == "web" }` and `all` test the elements
//! of a list or map; their names are valid inside the braces. A bad expression is refused with its
//! column.

mod evaluate;
mod parse;

use scheduler::{Budget, Pattern};
use serde_json::Value;

use super::error::Error;

/// Length of an expression, bytes.
const BYTES_MAX: usize = 8 << 10;
/// How deep parentheses and `not` may be nested.
const DEPTH_MAX: usize = 64;
/// What a look at an element costs of the budget: some hundred nanoseconds by its estimate. `any`
/// in `any` multiplies.
const ELEMENT: u64 = 1_000;

/// A parsed expression.
#[derive(Debug)]
pub(crate) struct Filter {
    expression: Expression,
    /// For its patterns on all rows.
    budget: Budget,
}

#[derive(Debug)]
enum Expression {
    And(Box<Expression>, Box<Expression>),
    Or(Box<Expression>, Box<Expression>),
    Not(Box<Expression>),
    Match(Selector, Operator),
    Collection(Box<Collection>),
}

/// `any` or `all` of what a list or map holds.
#[derive(Debug)]
struct Collection {
    every: bool,
    selector: Selector,
    names: Names,
    inside: Expression,
}

/// What an expression inside calls an element, none what it does not name (`_`).
#[derive(Debug)]
enum Names {
    /// The value in a list, the key in a map.
    One(Option<String>),
    KeyAndValue(Option<String>, Option<String>),
}

/// Where a value is, from the object down.
#[derive(Debug)]
struct Selector {
    path: Vec<String>,
    /// Column of its first character, from 1.
    column: usize,
}

#[derive(Debug)]
enum Operator {
    Equals(String),
    DoesNotEqual(String),
    /// `value in selector` and `selector contains value`.
    Contains(String),
    DoesNotContain(String),
    Matches(Pattern),
    DoesNotMatch(Pattern),
    IsEmpty,
    IsNotEmpty,
    IsNil,
    IsNotNil,
}

impl Filter {
    /// Parses an expression, whose patterns cost of the budget, as do their matches.
    pub(crate) fn parse(text: &str, budget: Budget) -> Result<Self, Error> {
        if text.len() > BYTES_MAX {
            let why = format!("failed to read filter expression: longer than {BYTES_MAX} bytes");
            return Err(Error::bad(why));
        }
        let expression = parse::expression(text, &budget)?;
        Ok(Self { expression, budget })
    }

    /// Whether a row is selected: `shown` is what the list shows of it, `whole` makes the whole
    /// object, where the list shows less.
    pub(crate) fn selects(
        &self,
        shown: &Value,
        whole: Option<&dyn Fn() -> Value>,
    ) -> Result<bool, Error> {
        let row = evaluate::Row::new(shown, whole, &self.budget);
        row.satisfies(&self.expression, &evaluate::Scope::default())
    }
}

/// An error at a column. It begins as that of Nomad does, by which its programs know that a server
/// does not take a filter.
fn wrong(column: usize, what: impl std::fmt::Display) -> Error {
    Error::bad(format!("failed to read filter expression: column {column}: {what}"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::cell::Cell;

    use serde_json::json;

    use super::*;

    fn row() -> Value {
        json!({
            "Name": "web-1", "Priority": 50, "Weight": 0.5, "Stop": false, "Parent": null,
            "Datacenters": ["dc1", "dc2"], "Ports": [80, 443], "Events": [],
            "Meta": { "rack": "r1", "a b": "x", "empty": "" },
            "Job": { "Meta": { "owner": "ops" }, "Type": "service" },
            "Groups": [{ "Name": "g", "Tasks": ["t1", "t2"] }, { "Name": "h", "Tasks": [] }],
            "any": "yes",
        })
    }

    fn parse(text: &str) -> Result<Filter, Error> {
        Filter::parse(text, Budget::new(Budget::OF_REQUEST))
    }

    fn selects(text: &str) -> Result<bool, String> {
        let filter = parse(text).map_err(|error| format!("{error:?}"))?;
        filter.selects(&row(), None).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn expressions_select_as_in_nomad() {
        for (text, expected) in [
            (r#"Name == "web-1""#, true),
            ("Name == `web-1`", true),
            (r#"Name != "web-1""#, false),
            ("Priority == 50", true),
            ("Priority == \"50\"", true),
            ("Priority != 51", true),
            ("Weight == 0.5", true),
            ("Stop == false", true),
            ("Stop == F", true),
            ("Stop != true", true),
            ("Job.Type == service", true),
            (r#"Job.Meta.owner == "ops""#, true),
            (r#""/Job/Meta/owner" == "ops""#, true),
            (r#"Meta["a b"] == "x""#, true),
            (r#"Meta.rack == "r1""#, true),
            // What a map does not have.
            (r#"Meta.row == "r1""#, false),
            (r#"Meta.row != "r1""#, true),
            ("Meta.row is empty", true),
            ("Meta.row is not empty", false),
            ("\"r\" in Meta.row", false),
            ("\"r\" not in Meta.row", true),
            ("Meta.row matches \".*\"", false),
            ("Meta.row not matches \".*\"", true),
            ("Meta.row.deeper is empty", true),
            // Null, and what is not there.
            ("Parent is nil", true),
            ("Parent is not nil", false),
            ("Meta is nil", false),
            ("Meta is not nil", true),
            ("Meta.row is nil", true),
            ("Meta.empty is not nil", true),
            ("Priority is not nil", true),
            ("Parent is empty", true),
            ("Parent == \"x\"", false),
            ("Parent != \"x\"", true),
            // Lists, maps and parts of texts.
            ("dc1 in Datacenters", true),
            ("\"dc3\" in Datacenters", false),
            ("dc3 not in Datacenters", true),
            ("Datacenters contains dc2", true),
            ("Datacenters not contains dc2", false),
            ("443 in Ports", true),
            ("444 in Ports", false),
            ("rack in Meta", true),
            ("row in Meta", false),
            ("\"eb-\" in Name", true),
            ("Name contains \"xx\"", false),
            ("Events is empty", true),
            ("Datacenters is not empty", true),
            ("Meta.empty is empty", true),
            ("Groups.0.Name == g", true),
            ("Groups.2.Name is empty", true),
            // What is in lists and maps: one name is the value of a list, the key of a map.
            ("any Groups as g { g.Name == h }", true),
            ("any Groups as g { g.Name == x }", false),
            ("all Groups as g { g.Name == g or g.Name == h }", true),
            ("all Groups as g { g.Name == g }", false),
            ("any Groups as i, g { i == 1 and g.Name == h }", true),
            ("any Groups as i, _ { i == 2 }", false),
            ("any Groups as _, g { g.Name is not empty }", true),
            ("any Datacenters as d { d matches `^dc2$` }", true),
            ("any Meta as k { k == rack }", true),
            ("any Meta as k, v { k == rack and v == r1 }", true),
            ("all Meta as _, v { v is not empty }", false),
            ("any Events as e { e == x }", false),
            ("all Events as e { e == x }", true),
            ("any Parent as e { e == x }", false),
            ("all Meta.row as e { e == x }", true),
            // Names hide fields, and inner ones outer ones; others stay in sight.
            ("any Groups as Name { Name.Name == g }", true),
            ("any Groups as g { any g.Tasks as g { g == t1 } and g.Name == g }", true),
            ("any Groups as g { all g.Tasks as t { t contains t and Priority == 50 } }", true),
            ("not any Groups as g{g.Name==x}and Stop == false", true),
            ("any == yes", true),
            ("any is not empty and \"y\" in any and any contains y", true),
            // Patterns.
            (r#"Name matches "^web-[0-9]$""#, true),
            (r#"Name not matches "^db""#, true),
            ("Name matches `(?i)^WEB`", true),
            // Logic: `and` binds closer than `or`, `not` closest.
            ("Stop == true and Stop == true or Priority == 50", true),
            ("Priority == 50 or Stop == true and Stop == true", true),
            ("(Priority == 50 or Stop == true) and Stop == true", false),
            ("not Stop == true", true),
            ("not not Stop == true", false),
            ("not (Stop == false and Priority == 50)", false),
            ("  Stop==false   and(Priority==50)", true),
        ] {
            assert_eq!(selects(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_bad_filter_is_refused_with_its_column() {
        let nested = format!("{}Stop == true{}", "(".repeat(65), ")".repeat(65));
        for (text, column, what) in [
            ("", 1, "a field"),
            ("Name", 5, "an operator"),
            ("Name =", 6, "an operator"),
            ("Name == ", 9, "a value"),
            ("Name == web-1", 12, "quotes"),
            ("Name == \"web", 9, "never closed"),
            ("Name == `web", 9, "never closed"),
            ("Name == \"a\\q\"", 11, "escape"),
            ("(Name == a", 11, "`)`"),
            ("Name == a)", 10, "`and`"),
            ("Name == a Stop == true", 11, "`and`"),
            ("Name is full", 9, "`empty` or `nil`"),
            ("Name not like x", 10, "`in`"),
            ("Name matches \"(\"", 14, "unclosed"),
            ("Nmae == a", 1, "`Name`"),
            ("Priority == high", 1, "whole number"),
            ("Stop == maybe", 1, "true or false"),
            ("Datacenters == dc1", 1, "list"),
            ("Meta == x", 1, "map"),
            ("Priority is empty", 1, "number"),
            ("5 in Priority", 6, "number"),
            ("Priority matches x", 1, "number"),
            ("x in Groups", 6, "objects"),
            ("Name.First == x", 1, "no parts"),
            ("Groups.Name == g", 1, "position"),
            ("any Groups g { g.Name == x }", 12, "`as`"),
            ("any Groups as { g.Name == x }", 15, "a name"),
            ("any Groups as g.h { g.Name == x }", 15, "a name"),
            ("any Groups as g, g { g.Name == x }", 18, "both"),
            ("any Groups as g g.Name == x", 17, "`{`"),
            ("any Groups as g { g.Name == x", 30, "`}`"),
            ("any Name as n { n == x }", 5, "a text"),
            ("any Groups as g { h.Name == x }", 19, "no field `h`"),
            ("any Groups as g { g == x }", 19, "map"),
            ("Priority > 5", 10, "an operator"),
            (&nested, 65, "deep"),
        ] {
            let error = selects(text).unwrap_err();
            assert!(error.contains(&format!("column {column}:")), "{text}: {error}");
            assert!(error.contains(what), "{text}: {error}");
        }
        assert!(parse(&"x".repeat(BYTES_MAX + 1)).is_err());
    }

    /// Three lists with such a filter stopped writes for 23 s.
    #[test]
    fn patterns_cost_of_a_budget() {
        let filter = parse("Name matches \"a(?:[ab]{1000}){1}[^ab]\"").unwrap();
        assert!(!filter.selects(&row(), None).unwrap());
        let long = json!({ "Name": "ab".repeat(150_000) });
        let error = format!("{:?}", filter.selects(&long, None).unwrap_err());
        assert!(error.contains("column 1") && error.contains("cost too much"), "{error}");
        // So do many of them, before a row is looked at.
        let one = "Name matches `(?:[ab]{1000}){9}`";
        let many = vec![one; BYTES_MAX / (one.len() + 4)].join(" or ");
        let error = format!("{:?}", parse(&many).unwrap_err());
        assert!(error.contains("cost too much"), "{error}");
    }

    #[test]
    fn looks_inside_cost_of_the_budget_too() {
        let many = json!({ "Many": vec![0; 400] });
        let nested = |deep: usize| {
            let (before, behind) = ("any Many as m { ".repeat(deep), " }".repeat(deep));
            parse(&format!("{before}m == 1{behind}")).unwrap().selects(&many, None)
        };
        assert!(!nested(2).unwrap());
        let error = format!("{:?}", nested(3).unwrap_err());
        assert!(error.contains("looks at too much"), "{error}");
    }

    /// Programs made for Nomad go on without a filter by these words.
    #[test]
    fn refusals_are_in_the_words_of_nomad() {
        let refused = selects("Nmae == x").unwrap_err();
        assert!(
            refused.contains("error finding value in datum: /Nmae at part 0: couldn't find key"),
            "{refused}"
        );
        for text in ["Name", "Name ==", "any Name", "Name matches \"(\"", "Priority == high"] {
            let refused = selects(text).unwrap_err();
            assert!(refused.contains("failed to read filter expression"), "{text}: {refused}");
        }
    }

    #[test]
    fn the_whole_object_is_made_once_and_only_for_fields_that_are_not_shown() {
        let made = Cell::new(0);
        let whole = || {
            made.set(made.get() + 1);
            json!({ "Name": "other", "Links": { "a": "1" } })
        };
        let filter = parse("Name == \"web-1\"").unwrap();
        assert!(filter.selects(&row(), Some(&whole)).unwrap());
        assert_eq!(made.get(), 0);
        // A list says of a block whether there is one.
        let shown = json!({ "Periodic": false, "Parameterized": true });
        let whole_job = || json!({ "Periodic": null, "Parameterized": { "Payload": "" } });
        for (text, expected) in [
            ("Periodic is not nil", false),
            ("Periodic is nil", true),
            ("Parameterized is not nil", true),
            ("Periodic == false", true),
        ] {
            assert_eq!(parse(text).unwrap().selects(&shown, Some(&whole_job)).unwrap(), expected);
        }
        let filter = parse("Links.a == 1 and \"a\" in Links").unwrap();
        assert!(filter.selects(&row(), Some(&whole)).unwrap());
        assert_eq!(made.get(), 1);
    }
}
