//! The list of this repository, and lists and files that break each rule.

use super::*;

const LIST_OF_THREE: &str = "text\n\n```arrows\n# comment\nhttp -> api\nserver -> api raft\n\
                             api ->\nraft ->\n```\n";

/// Four folders that use what `LIST_OF_THREE` allows, and this file besides.
#[track_caller]
fn with(list: &str, path: &str, text: &str) -> Vec<String> {
    let mut files = vec![
        ("src/lib.rs", "pub mod api;\npub mod http;\npub mod raft;\npub mod server;\n"),
        ("src/api/mod.rs", "pub trait Api {}\n"),
        ("src/http/mod.rs", "use crate::api::Api;\n"),
        ("src/raft/mod.rs", "//! [`crate::server`]\n"),
        ("src/server/mod.rs", "use crate::{\n    api::{self, Api},\n    raft::Raft,\n};\n"),
    ];
    files.push((path, text));
    findings(list, &files, &[])
}

#[track_caller]
fn says(found: &[String], wanted: &[&str]) {
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
    for (found, wanted) in found.iter().zip(wanted) {
        assert!(found.contains(wanted), "{found} does not say {wanted}");
    }
}

#[test]
fn the_folders_of_this_repository_keep_their_direction() {
    let repository = Repository::read(&crate::root()).expect("the repository can be read");
    let found = check(&repository);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_forbidden_arrow_is_named_with_its_place() {
    for text in [
        "\nuse crate::server::Core;\n",
        "\nuse crate::{api::Api, server::{Core, run}};\n",
        "\nfn f() { crate::server::run(); }\n",
        "\nuse super::super::server;\n",
        "\nmod inner { use super::super::super::server::Core; }\n",
        "\ntype T = Vec<super::super::server::Core>;\n",
    ] {
        let found = with(LIST_OF_THREE, "src/http/job.rs", text);
        says(&found, &["src/http/job.rs:2: the arrow `http -> server` is not in ARCHITECTURE.md"]);
    }
}

#[test]
fn a_group_over_several_lines_is_named_with_the_line_of_the_folder() {
    let text = "use crate::{\n    api::Api,\n    raft::{\n        Raft,\n    },\n};\n";
    let found = with(LIST_OF_THREE, "src/http/job.rs", text);
    says(&found, &["src/http/job.rs:3: the arrow `http -> raft`"]);
}

#[test]
fn comments_strings_and_paths_inside_the_folder_are_no_arrows() {
    let text = "//! [`crate::server`]\n/* crate::server::x /* */ crate::server */\n\
                const A: &str = \"crate::server::x\";\nconst B: &str = r#\"\"crate::server::x\"#;\n\
                use super::view;\nuse self::inner::Raft;\nuse crate::http::call;\n\
                const QUOTE: char = '\"';\nconst C: &str = \"\\\" crate::server::y\";\n\
                mod inner { use super::super::error::Error; }\n\
                fn f<'a>(x: &'a str) -> &'a str { x }\n";
    says(&with(LIST_OF_THREE, "src/http/job.rs", text), &[]);
}

#[test]
fn an_arrow_that_nothing_uses_is_told() {
    let list = LIST_OF_THREE.replace("http -> api", "http -> api raft");
    let found = with(&list, "src/http/job.rs", "");
    says(&found, &["nothing uses the arrow `http -> raft`"]);
}

#[test]
fn a_circle_is_told() {
    let list = LIST_OF_THREE.replace("raft ->", "raft -> http").replace("api ->", "api -> server");
    let uses = "use crate::{http::x, api::x};\nmod a { use crate::server::x; }\n";
    let found = with(&list, "src/raft/x.rs", uses);
    assert!(found[0].contains("a circle: api -> server -> api"), "{found:#?}");
}

#[test]
fn every_folder_has_a_line_and_every_line_a_folder() {
    says(&with(LIST_OF_THREE, "src/clock.rs", ""), &["src/clock has no line"]);
    let list = LIST_OF_THREE.replace("raft ->", "raft ->\nweb ->");
    says(&with(&list, "src/http/job.rs", ""), &["`web` is no folder"]);
}

#[test]
fn tests_may_have_arrows_of_their_own() {
    let list = LIST_OF_THREE.replace("raft ->", "raft ->\nraft (tests) -> server");
    let test = "#[cfg(test)]\nmod tests {\n    use crate::server::x;\n}\n";
    says(&with(&list, "src/raft/log.rs", test), &[]);
    let code = "use crate::server::x;\n";
    let outside = ["src/raft/log.rs:1: the arrow `raft -> server`", "`raft (tests) -> server`"];
    says(&with(&list, "src/raft/log.rs", code), &outside);
    let found = with(LIST_OF_THREE, "src/raft/log.rs", test);
    says(&found, &["src/raft/log.rs:3: the arrow `raft (tests) -> server`"]);
}

#[test]
fn a_file_that_is_declared_for_tests_only_is_a_test() {
    let declares = "#[cfg(test)]\nmod crash;\nmod log;\n";
    let list = LIST_OF_THREE.replace("raft ->", "raft ->\nraft (tests) -> server");
    let files = |below: &'static str| {
        [
            ("src/api/mod.rs", ""),
            ("src/http/mod.rs", "use crate::api;"),
            ("src/server/mod.rs", "use crate::{api, raft};"),
            ("src/raft/mod.rs", declares),
            (below, "use crate::server::x;"),
        ]
    };
    says(&findings(&list, &files("src/raft/crash.rs"), &[]), &[]);
    says(&findings(&list, &files("src/raft/crash/deep.rs"), &[]), &[]);
    let found = findings(&list, &files("src/raft/log.rs"), &[]);
    says(&found, &["the arrow `raft -> server`", "nothing uses"]);
}

#[test]
fn packages_and_the_library_have_arrows_too() {
    let packages = ["fsm", "leader"].map(|name| package(name, name));
    let list = "```arrows\nfsm ->\nleader -> fsm\nserver -> fsm\nmain -> server\n```\n";
    let files = |leader: &'static str| {
        [
            ("src/fsm/src/lib.rs", "mod state;"),
            ("src/leader/src/lib.rs", leader),
            ("src/server/mod.rs", "fn f(state: &fsm::State, leader: u64) -> u64 { x.leader }"),
            ("src/main.rs", "fn main() { quorate::server::run(); }"),
        ]
    };
    says(&findings(list, &files("use fsm::State;\nuse crate::broker::Broker;"), &packages), &[]);
    let mut files = files("use fsm::State;").to_vec();
    files.push(("src/fsm/src/state.rs", "use leader::Broker;\nuse crate::leader::X;"));
    says(
        &findings(list, &files, &packages),
        &["src/fsm/src/state.rs:1: the arrow `fsm -> leader`"],
    );
}

fn package(folder: &str, library: &str) -> Package {
    Package { folder: folder.to_owned(), library: library.to_owned() }
}

#[test]
fn a_room_of_a_package_that_has_a_line_has_arrows_of_its_own() {
    let packages = [package("raft", "raft_log"), package("server", "server")];
    let list = "```arrows\nraft -> raft/disk\nraft/disk ->\nserver -> raft/disk\n```\n";
    let files = |raft: &'static str, disk: &'static str, server: &'static str| {
        [
            ("src/raft/src/lib.rs", "mod disk;\nmod log;"),
            ("src/raft/src/log.rs", raft),
            ("src/raft/src/disk/file.rs", disk),
            ("src/server/src/lib.rs", server),
        ]
    };
    let kept = files("use crate::disk::File;", "use super::Other;", "use raft_log::disk::File;");
    says(&findings(list, &kept, &packages), &[]);
    let broken = files("use super::disk;", "use crate::log::X;", "use raft_log::{disk, log::X};");
    says(
        &findings(list, &broken, &packages),
        &[
            "src/raft/src/disk/file.rs:1: the arrow `raft/disk -> raft`",
            "src/server/src/lib.rs:1: the arrow `server -> raft`",
        ],
    );
    let gone = list.replace("raft/disk ->", "raft/disk ->\nraft/disc ->");
    says(&findings(&gone, &kept, &packages), &["`raft/disc` is no folder"]);
}

#[test]
fn rooms_of_the_simulation_of_the_control_plane_have_arrows_too() {
    let packages = [package("fsm", "fsm"), package("sim/control", "control")];
    let list = "```arrows\nfsm ->\nsim/control -> sim/control/people\nsim/control/cluster -> fsm\n\
                sim/control/people -> sim/control/cluster\n```\n";
    let files = |cluster: &'static str, people: &'static str| {
        [
            ("src/fsm/src/lib.rs", ""),
            (
                "sim/control/src/lib.rs",
                "mod cluster;\nmod people;\nuse people::World;\nuse self::people::X;",
            ),
            ("sim/control/src/cluster/log.rs", cluster),
            ("sim/control/src/people.rs", people),
        ]
    };
    let people = "use self::jobs::Job;\nuse crate::cluster::log::Log;";
    let kept = files("use fsm::State;\nuse super::Cluster;", people);
    says(&findings(list, &kept, &packages), &[]);
    let broken = files("use fsm::State;\nuse super::super::people::World;", people);
    says(
        &findings(list, &broken, &packages),
        &[
            "sim/control/src/cluster/log.rs:2: the arrow `sim/control/cluster -> sim/control/people`",
        ],
    );
    let round = list.replace("cluster -> fsm", "cluster -> fsm sim/control/people");
    let found = findings(&round, &broken, &packages);
    says(&found, &["a circle: sim/control/people -> sim/control/cluster -> sim/control/people"]);
    let gone = list.replace("sim/control ->", "sim/other ->");
    let found = findings(&gone, &kept, &packages);
    assert!(found[0].starts_with("sim/control has no line"), "{found:#?}");
}

#[test]
fn a_room_of_a_folder_of_the_root_package_has_arrows_of_its_own() {
    let list = "```arrows\ncli -> cli/job cli/output\ncli/job -> cli/output\ncli/output ->\n```\n";
    let files = |output: &'static str| {
        [
            ("src/cli.rs", "mod job;\nmod output;\nuse self::{job::run, output::line};"),
            ("src/cli/job/run.rs", "use super::super::output::line;\nuse super::plan;"),
            ("src/cli/output.rs", output),
        ]
    };
    says(&findings(list, &files("use std::fmt;"), &[]), &[]);
    for text in ["use super::job::run;", "use crate::cli::job::run;"] {
        let wanted = "src/cli/output.rs:1: the arrow `cli/output -> cli/job`";
        says(&findings(list, &files(text), &[]), &[wanted]);
    }
    let found = findings(list, &files("use super::Arguments;"), &[]);
    says(&found, &["src/cli/output.rs:1: the arrow `cli/output -> cli`"]);
}

#[test]
fn names_of_other_crates_and_of_own_modules_are_no_packages() {
    let packages = [package("server", "server"), package("agent", "agent")];
    let list = "```arrows\nserver ->\nagent ->\nconfig ->\n```\n";
    let files = [
        ("src/server/src/lib.rs", ""),
        ("src/agent/src/lib.rs", "use hyper::{Request, server::conn::http1};"),
        ("src/config/mod.rs", "mod server;\npub use server::ServerConfig;"),
        (
            "src/config/file.rs",
            "use super::{server::{self, ServerConfig}};\ntype S = server::Server;",
        ),
    ];
    says(&findings(list, &files, &packages), &[]);
}

#[test]
fn a_list_that_cannot_be_read_is_told_with_its_line() {
    says(&with("no list", "src/http/job.rs", ""), &["0 blocks"]);
    let found = with("```arrows\nhttp api\n```\n", "src/http/job.rs", "");
    says(&found, &["ARCHITECTURE.md:2: `http api` is not `folder -> folder …`"]);
    let twice = LIST_OF_THREE.replace("raft ->", "raft ->\nraft -> api");
    says(&with(&twice, "src/http/job.rs", ""), &["`raft` has two lines"]);
}
