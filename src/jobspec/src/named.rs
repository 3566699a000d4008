//! Files of namespaces and node pools, in Nomad's HCL or in the API's JSON.
//!
//! A file of a namespace holds its fields, that of a node pool one block `node_pool "name" { … }`.

use hcl::edit::{
    Ident,
    structure::{Block, Body, Structure},
};
use serde_json::Value;

use super::{
    Diagnostics,
    diagnostic::Sink,
    hcl::{body, place, walk},
    is_json, json_value, schema,
};

/// What a file is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named {
    /// A namespace of jobs.
    Namespace,
    /// A name for a set of nodes.
    NodePool,
}

/// The API's JSON of what a file holds: JSON when `path` ends in `.json` or the first character is
/// `{`, HCL otherwise.
pub fn parse_named(what: Named, path: &str, source: &str) -> Result<Value, Diagnostics> {
    let mut sink = Sink::new(path, source);
    let read = if is_json(path, source) {
        json_value(source, &mut sink)
    } else {
        body(source, &mut sink).and_then(|body| read_hcl(what, body, &mut sink))
    };
    match read {
        Some(value) if !sink.has_errors() => Ok(value),
        Some(_) | None => Err(sink.finish()),
    }
}

fn read_hcl(what: Named, body: Body, sink: &mut Sink<'_>) -> Option<Value> {
    match what {
        Named::Namespace => {
            let mut whole = Block::new(Ident::new("namespace"));
            whole.body = body;
            Some(Value::Object(walk(&whole, "namespace", &schema::NAMESPACE, sink)))
        }
        Named::NodePool => {
            let mut found = None;
            for structure in &body {
                match structure {
                    Structure::Block(block)
                        if block.ident.as_str() == "node_pool" && found.is_none() =>
                    {
                        found = Some(walk(block, "node_pool", &schema::NODE_POOL, sink));
                    }
                    Structure::Block(block) => {
                        let text = "a file holds one block `node_pool \"name\" { … }`";
                        sink.error(place(&block.ident), text);
                    }
                    Structure::Attribute(attribute) => {
                        let name = attribute.key.as_str();
                        let text = format!(
                            "attribute \"{name}\" outside a block: move it into `node_pool \"…\" {{ }}`"
                        );
                        sink.error(place(&attribute.key), text);
                    }
                }
            }
            if found.is_none() {
                let text = "no node pool found: a file holds one block `node_pool \"name\" { … }`";
                sink.error(0..0, text);
            }
            found.map(Value::Object)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn refused(what: Named, source: &str, text: &str) {
        let said = parse_named(what, "f.hcl", source).expect_err("it is wrong").to_string();
        assert!(said.contains(text), "{said}");
    }

    #[test]
    fn files_give_what_the_api_takes() {
        let pool = "node_pool \"gpu\" {\n  description = \"fast\"\n  meta {\n    owner = \"ann\"\n  }\n\
            node_identity_ttl = \"1h\"\n}\n";
        let expected = json!({"Name": "gpu", "Description": "fast", "Meta": {"owner": "ann"},
            "NodeIdentityTTL": 3_600_000_000_000_i64});
        assert_eq!(parse_named(Named::NodePool, "f.hcl", pool).ok(), Some(expected));
        let namespace = "name = \"web\"\ndescription = \"the team\"\nmeta {\n  a = \"b\"\n}\n";
        let expected = json!({"Name": "web", "Description": "the team", "Meta": {"a": "b"}});
        assert_eq!(parse_named(Named::Namespace, "f.hcl", namespace).ok(), Some(expected));
        let as_json = parse_named(Named::Namespace, "f", "{\"Name\": \"web\"}");
        assert_eq!(as_json.ok(), Some(json!({"Name": "web"})));
    }

    #[test]
    fn an_unknown_key_is_named() {
        refused(Named::Namespace, "name = \"a\"\nquota = \"b\"", "\"quota\" is not supported yet");
        refused(Named::Namespace, "nam = \"a\"", "did you mean \"name\"");
        refused(Named::Namespace, "description = \"a\"", "name");
        refused(Named::NodePool, "", "no node pool found");
        refused(Named::NodePool, "node_pool \"a\" {}\nnode_pool \"b\" {}", "one block");
        refused(
            Named::NodePool,
            "node_pool \"a\" {\n  scheduler_config {}\n}",
            "not supported yet",
        );
    }
}
