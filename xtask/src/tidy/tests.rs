use super::*;

/// A crate where it should be, with the workspace's lints.
fn a_crate(name: &str, needs: &[&str]) -> Crate {
    let folder = if name == "xtask" { name.to_owned() } else { format!("crates/{name}") };
    Crate {
        name: name.to_owned(),
        folder: folder.into(),
        needs: needs.iter().map(|&name| name.to_owned()).collect(),
        binaries: 0,
        is_default: false,
        manifest: "[lints]\nworkspace = true\n".parse().unwrap(),
    }
}

fn two_crates() -> Vec<Crate> {
    vec![a_crate("partywall", &["partywall-core"]), a_crate("partywall-core", &[])]
}

fn lines(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(Problem::to_string).collect()
}

fn files(files: &[(&str, &str)]) -> Vec<(PathBuf, String)> {
    files.iter().map(|&(path, text)| (path.into(), text.to_owned())).collect()
}

#[test]
fn this_repository_is_tidy() {
    let problems = check(&workspace::root().unwrap()).unwrap();
    assert_eq!(lines(&problems), Vec::<String>::new());
}

#[test]
fn the_map_has_every_crate_and_no_other() {
    let head = "# Map\n### `crates/elsewhere`\n## Code map\n\n### `crates/partywall`\nThe command line.\n";
    let good = format!("{head}### `crates/partywall-core`\n## Planned\n### `crates/later`\n");
    assert_eq!(lines(&mapped(&good, &two_crates())), Vec::<String>::new());
    let missing = "ARCHITECTURE.md: `crates/partywall-core` is not in the map; add a heading ### \
                   `crates/partywall-core` under \"## Code map\"";
    assert_eq!(lines(&mapped(head, &two_crates())), [missing]);
    let stale =
        "ARCHITECTURE.md:7:1: `crates/partywall-core` is in the map, but the workspace has no such crate";
    assert_eq!(lines(&mapped(&good, &two_crates()[..1])), [stale]);
}

#[test]
fn the_arrows_are_the_dependencies() {
    let block = |lines: &str| format!("text\n```arrows\n{lines}```\npartywall -> nonsense\n");
    let good = "partywall -> partywall-core\npartywall-core ->\n";
    for (drawn, expected) in [
        (good.to_owned(), vec![]),
        (
            "partywall ->\npartywall-core ->\n".to_owned(),
            vec![
                "ARCHITECTURE.md:3:1: the arrows of `partywall` are not its dependencies, which are `partywall -> \
                  partywall-core`",
            ],
        ),
        (
            "partywall -> partywall-core\npartywall-core -> partywall\n".to_owned(),
            vec![
                "ARCHITECTURE.md:4:1: the arrows of `partywall-core` are not its dependencies, which are \
                  `partywall-core ->`",
            ],
        ),
        (
            "partywall-core ->\n".to_owned(),
            vec![
                "ARCHITECTURE.md: the `arrows` block has no line for `partywall`; it would be `partywall -> \
                  partywall-core`",
            ],
        ),
        (
            format!("{good}partywall-gateway -> partywall-core\n"),
            vec!["ARCHITECTURE.md:5:1: arrows from `partywall-gateway`, but the workspace has no such crate"],
        ),
        (
            format!("{good}partywall and core\n"),
            vec!["ARCHITECTURE.md:5:1: `partywall and core` should read `crate -> crate, crate`"],
        ),
        (
            format!("{good}partywall-core ->\n"),
            vec!["ARCHITECTURE.md:5:1: `partywall-core` has two lines of arrows; one is enough"],
        ),
    ] {
        assert_eq!(lines(&arrows(&block(&drawn), &two_crates())), expected, "{drawn}");
    }
}

#[test]
fn only_some_crates_may_leave_the_lints() {
    let shared: toml::Table =
        "[workspace.lints.rust]\nunsafe_code = \"forbid\"\nmissing_docs = \"warn\"\n".parse().unwrap();
    let with = |name: &str, manifest: &str| {
        vec![Crate { manifest: manifest.parse().unwrap(), ..a_crate(name, &[]) }]
    };
    let own = "[lints.rust]\nunsafe_code = \"deny\"\nmissing_docs = \"warn\"\n";
    assert_eq!(lints(&shared, &two_crates()), []);
    assert_eq!(lints(&shared, &with("partywall-driver", own)), []);
    let not_allowed = "crates/partywall/Cargo.toml: should say `[lints]` and `workspace = true`: this crate may not \
                       hold `unsafe`";
    for manifest in [own, "", "[lints]\nworkspace = false\n"] {
        assert_eq!(lines(&lints(&shared, &with("partywall", manifest))), [not_allowed]);
    }
    let looser = own.replace("missing_docs = \"warn\"\n", "");
    let differs = "crates/partywall-driver/Cargo.toml: its [lints] may differ from the workspace's in `unsafe_code` alone";
    assert_eq!(lines(&lints(&shared, &with("partywall-driver", &looser))), [differs]);

    let lax: toml::Table = "[workspace.lints.rust]\nunsafe_code = \"deny\"\n".parse().unwrap();
    let forbid = "Cargo.toml: [workspace.lints.rust] should say `unsafe_code = \"forbid\"`";
    assert_eq!(lines(&lints(&lax, &two_crates())), [forbid]);
}

#[test]
fn crates_lie_in_folders_of_their_name() {
    assert_eq!(folders(&[a_crate("xtask", &[]), a_crate("partywall-sim", &[])]), []);
    let moved = Crate { folder: "crates/sim".into(), ..a_crate("partywall-sim", &[]) };
    let expected = "crates/sim/Cargo.toml: crate `partywall-sim` should lie in `crates/partywall-sim`";
    assert_eq!(lines(&folders(&[moved])), [expected]);
}

#[test]
fn one_crate_with_one_program_runs_by_default() {
    let with = |binaries| Crate { binaries, is_default: true, ..a_crate("partywall", &[]) };
    assert_eq!(default_member(&[with(1), a_crate("xtask", &[])]), []);
    let expected = "Cargo.toml: default-members should be one crate with one program; found ";
    assert_eq!(lines(&default_member(&[with(2)])), [format!("{expected}`partywall` with 2 programs")]);
    assert_eq!(lines(&default_member(&two_crates())), [expected]);
}

#[test]
fn core_depends_on_no_crate_of_the_workspace() {
    assert_eq!(core_stands_alone(&two_crates()), []);
    let expected = "crates/partywall-core/Cargo.toml: partywall-core depends on no crate of the workspace, but it names xtask";
    assert_eq!(lines(&core_stands_alone(&[a_crate(CORE, &["xtask"])])), [expected]);
}

#[test]
fn rust_files_have_a_longest_length() {
    let text = |lines| "x\n".repeat(lines);
    let (at_most, beyond) = (text(MAX_LINES), text(MAX_LINES + 1));
    let found = lengths(&files(&[("a.rs", &at_most), ("b.rs", &beyond), ("c.json", &beyond)]));
    assert_eq!(lines(&found), ["b.rs: has 701 lines; at most 700: look for the second idea in it"]);
}

#[test]
fn folders_of_one_machine_are_found() {
    for folder in MACHINE_FOLDERS {
        for fine in [format!("docs{folder}x"), format!("https://example.org{folder}x"), format!("~{folder}")]
        {
            assert_eq!(machine_paths(&files(&[("a.md", &fine)])), [], "{fine}");
        }
        let text = format!("a\nsee \"{folder}x\"");
        let expected = format!(
            "a.md:2:6: `{folder}` is a folder of one machine; write paths from the repository's root"
        );
        assert_eq!(lines(&machine_paths(&files(&[("a.md", &text)]))), [expected]);
    }
}

#[test]
fn the_readme_has_two_commands() {
    let good = "Run\n```sh\ncargo run --release -- demo\n```\nand\n```sh\ncargo test --workspace\n```\n";
    assert_eq!(readme_commands(good), []);
    let other = "```text\ncargo run\n```\n";
    assert_eq!(readme_commands(&format!("{good}{other}")), [], "other blocks are no commands");
    let more = format!("{good}```sh\ncargo build\n```\n");
    assert_eq!(
        lines(&readme_commands(&more)),
        [
            "README.md: the `sh` blocks should hold exactly `cargo run --release -- demo` and `cargo test --workspace`; \
          found [\"cargo run --release -- demo\", \"cargo test --workspace\", \"cargo build\"]"
        ]
    );
    assert_eq!(readme_commands("").len(), 1);
}

#[test]
fn the_readme_names_every_folder() {
    let tree = files(&[("README.md", ""), (".ci/run", ""), ("docs/a.md", ""), ("crates/x/y.rs", "")]);
    assert_eq!(readme_folders("`docs/` guide, `crates/` code", &tree), []);
    assert_eq!(
        lines(&readme_folders("`crates/` code", &tree)),
        ["README.md: name the folder `docs/` in a line that says what is in it"]
    );
}
