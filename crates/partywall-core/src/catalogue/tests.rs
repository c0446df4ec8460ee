use proptest::prelude::*;

use super::*;
use crate::gpu::{Mig, SourceKind};

fn builtin() -> &'static Catalogue {
    Catalogue::builtin().expect("the embedded files are sound")
}

fn gpu(id: &str) -> &'static Gpu {
    builtin().get(id).unwrap()
}

fn text_of(id: &str) -> &'static str {
    FILES.iter().find(|(name, _)| name.ends_with(&format!("/{id}.toml"))).unwrap().1
}

/// The message for the text of a known GPU after one replacement, which must apply.
fn complaint(id: &str, from: &str, to: &str) -> String {
    let text = text_of(id);
    assert!(text.contains(from), "{id} has no `{from}`");
    Gpu::parse(&text.replacen(from, to, 1), "x.toml").unwrap_err().to_string()
}

/// Replaces the value of a figure, whatever it is.
fn with_value(id: &str, key: &str, value: &str) -> String {
    let text = text_of(id);
    let start = text.find(&format!("\n{key} = ")).unwrap() + 1;
    let comma = start + text[start..].find(',').unwrap();
    format!("{}{key} = {{ value = {value}{}", &text[..start], &text[comma..])
}

#[track_caller]
fn check_value(id: &str, key: &str, value: &str, expect: &str) {
    let message = Gpu::parse(&with_value(id, key, value), "x.toml").unwrap_err().to_string();
    assert!(message.contains(expect), "{message}");
}

#[test]
fn every_file_of_the_folder_is_built_in_under_its_own_name() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/gpus");
    let mut on_disk: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().replace(".toml", ""))
        .collect();
    on_disk.sort();
    let mut ids: Vec<String> = builtin().iter().map(|gpu| gpu.id.clone()).collect();
    ids.sort();
    assert_eq!(ids, on_disk);
    assert_eq!(ids.len(), 9);
    for (file, text) in FILES {
        assert_eq!(*file, format!("profiles/gpus/{}.toml", Gpu::parse(text, file).unwrap().id));
    }
}

#[test]
fn units_of_the_helpers() {
    let h200 = gpu("h200");
    assert_eq!(h200.sms().0, 132);
    // 8 GiB copied at 4250 GB/s read plus written take 4 ms.
    let nanos = 2.0 * f64::from(1_u32 << 30) * 8.0 / h200.stream_bytes_per_ns();
    assert!((nanos / 1e6 - 4.04).abs() < 0.01, "{nanos}");
    // 8 MiB at 57 GB/s take 147 us.
    let nanos = f64::from(8_u32 << 20) / h200.pcie_bytes_per_ns();
    assert!((nanos / 1e3 - 147.2).abs() < 0.1, "{nanos}");
}

#[test]
fn only_the_measured_part_claims_measurements() {
    for gpu in builtin().iter() {
        let measured = check::figures(gpu).iter().any(|figure| figure.kind == SourceKind::Measured);
        assert_eq!(measured, gpu.id == "h200", "{}", gpu.id);
    }
}

#[test]
fn unknown_ids_name_the_nearest_and_list_all() {
    let message = |id: &str| builtin().get(id).unwrap_err().to_string();
    assert_eq!(
        message("h20"),
        "`h20` is no GPU of the catalogue (did you mean `h200`?); choose one of h200, h100-sxm, h100-pcie, \
         a100-80gb, a100-40gb, l40s, l4, agx-orin, orin-nano"
    );
    let nearest = |id: &str| builtin().get(id).unwrap_err().nearest;
    assert_eq!(nearest("H200").as_deref(), Some("h200"));
    assert_eq!(nearest("h100").as_deref(), Some("h100-sxm"));
    assert_eq!(nearest("a10-80gb").as_deref(), Some("a100-80gb"));
    assert_eq!(nearest("orin-nanno").as_deref(), Some("orin-nano"));
    assert_eq!(nearest("rtx-5090"), None);
    assert_eq!(nearest(""), None);
    assert_eq!(nearest(&"h".repeat(100_000)), None);
}

#[test]
fn syntax_errors_say_where() {
    let lines: Vec<&str> = text_of("l4").lines().collect();
    let sms = lines.iter().position(|line| line.starts_with("sms")).unwrap() + 1;
    let message = complaint("l4", "sms = { value = 58", "sms = { value = \"58\"");
    assert!(message.starts_with(&format!("x.toml:{sms}:17: ")), "{message}");
    assert!(message.contains("expected u32"), "{message}");

    let message = complaint("l4", "sms = {", "smss = {");
    assert!(message.starts_with(&format!("x.toml:{sms}:1: unknown field `smss`")), "{message}");

    let message = complaint("l4", "kind = \"paper\"", "kind = \"rumour\"");
    assert!(message.contains("`measured`") && message.contains("rumour"), "{message}");

    assert_eq!(Gpu::parse("", "x.toml").unwrap_err().to_string(), "x.toml:1:1: missing field `id`");
}

#[test]
fn positions_count_characters_and_stay_in_the_text() {
    assert_eq!(position("aé\nxy", 0), (1, 1));
    assert_eq!(position("aé\nxy", 3), (1, 3));
    assert_eq!(position("aé\nxy", 4), (2, 1));
    assert_eq!(position("aé\nxy", 999), (2, 3));
}

#[test]
fn contradictions_are_all_told() {
    check_value("l4", "sms", "0", "`sms` is 0; it must be more than 0");
    check_value("l4", "l2_mib", "nan", "`l2_mib` is NaN; it must be more than 0");
    check_value("l4", "vram_gib", "inf", "`vram_gib` is inf");
    check_value("l4", "stream_gb_s", "301", "`stream_gb_s` is 301, more than `vram_gb_s`, 300");
    check_value("l4", "clock_min_mhz", "2041", "`clock_min_mhz` is 2041, more than `clock_max_mhz`, 2040");
    check_value("l4", "power_idle_w", "80", "`power_idle_w` is 80, more than `power_cap_w`, 72");
    check_value(
        "l4",
        "sides",
        "59",
        "`sides` is 59, more than `sms`, 58; `sides` is 59, more than `channels`",
    );
    check_value("l4", "green_context_step", "3", "must be a multiple of `green_context_step`, 3");
    let message = complaint("l4", "id = \"l4\"", "id = \"L 4\"");
    assert_eq!(message, "x.toml: `id` is `L 4`; use lower-case letters, digits and hyphens");
    let message = complaint("l4", "source = \"L4 datasheet\"", "source = \" \"");
    assert!(message.contains("has no source; name the measurement"), "{message}");
}

#[test]
fn mig_contradictions_are_told() {
    let h200 = |from: &str, to: &str| complaint("h200", from, to);
    let expect = |message: String, part: &str| assert!(message.contains(part), "{message}");
    expect(
        h200("instances = 7", "instances = 8"),
        "`1g.18gb`: `instances` is 8, but 7 fit into its placements",
    );
    expect(
        h200("placements = [0, 4]", "placements = [0, 5]"),
        "`3g.71gb`: a placement at 5 takes 4 memory slices and does not fit into 8; the last start is 4",
    );
    expect(h200("placements = [0, 4]", "placements = [4, 0]"), "`placements` must rise");
    expect(h200("name = \"2g.35gb\"", "name = \"1g.35gb\""), "shares its name or id");
    expect(h200("copy_engines = 3", "copy_engines = 9"), "must be between 1 and the GPU's 8");
    expect(h200("sms = { value = 60", "sms = { value = 69"), "138 SMs together, the GPU has 132");
    expect(
        h200("memory_gib = { value = 69.8", "memory_gib = { value = 70.5"),
        "141 GiB together, the GPU has 140.4",
    );
    expect(h200("memory_slices = 8\n", "memory_slices = 99\n"), "must be between 1 and 16");
    expect(h200("[mig]\nmemory_slices = 8", "[mig]\nmemory_slices = 4"), "it must be between 1 and 4");
}

#[test]
fn one_id_is_one_file() {
    let message = Catalogue::parse(&[("a.toml", text_of("l4")), ("b.toml", text_of("l4"))]).unwrap_err();
    assert_eq!(
        message.to_string(),
        "b.toml: the id `l4` is already that of a.toml; give one of them another id"
    );
}

fn starts(id: &str, wanted: &[&str]) -> Result<Vec<u32>, String> {
    let placed = gpu(id).mig.as_ref().unwrap().place(wanted).map_err(|error| error.to_string())?;
    Ok(placed.iter().map(|instance| instance.start).collect())
}

#[test]
fn mig_layouts_that_exist() {
    for id in ["h200", "h100-sxm", "h100-pcie", "a100-40gb", "a100-80gb"] {
        assert_eq!(starts(id, &["3g", "3g"]), Ok(vec![0, 4]), "{id}");
        assert_eq!(starts(id, &["4g", "3g"]), Ok(vec![0, 4]), "{id}");
        assert_eq!(starts(id, &["3g", "4g"]), Ok(vec![4, 0]), "{id}");
        assert_eq!(starts(id, &["1g"; 7]), Ok(vec![0, 1, 2, 3, 4, 5, 6]), "{id}");
        assert_eq!(starts(id, &["7g"]), Ok(vec![0]), "{id}");
        assert_eq!(starts(id, &["1g", "2g", "2g", "2g"]), Ok(vec![6, 0, 2, 4]), "{id}");
        assert_eq!(starts(id, &[]), Ok(vec![]), "{id}");
    }
    assert_eq!(starts("h200", &["1g.35gb", "3g.71gb", "1g.18gb+me"]), Ok(vec![4, 0, 6]));
}

#[test]
fn mig_layouts_that_do_not() {
    let refusal = |wanted: &[&str]| starts("h200", wanted).unwrap_err();
    assert_eq!(refusal(&["4g", "4g"]), "2 instances of 4g.71gb were asked for, but this GPU has room for 1");
    assert_eq!(
        refusal(&["3g", "3g", "1g"]),
        "3g.71gb + 3g.71gb + 1g.18gb take 9 memory slices together, but this GPU has 8"
    );
    assert_eq!(
        refusal(&["4g", "2g", "1g", "1g"]),
        "4g.71gb + 2g.35gb + 1g.18gb + 1g.18gb have enough memory slices, but no allowed starts that do not overlap"
    );
    assert_eq!(
        refusal(&["1g.18gb+me"; 2]),
        "2 instances of 1g.18gb+me were asked for, but this GPU has room for 1"
    );
    assert_eq!(
        refusal(&["5g"]),
        "`5g` is no MIG profile of this GPU; choose from 1g.18gb, 1g.18gb+me, 1g.35gb, 2g.35gb, 3g.71gb, 4g.71gb, \
         7g.141gb"
    );
}

/// The highest clock, as a fraction, at which the power model of the module's essay stays under the cap.
fn clock_under_cap(gpu: &Gpu, utilisation: f64) -> f64 {
    let room = gpu.power_cap_w.value - gpu.power_idle_w.value;
    (room / (gpu.power_busy_w.value * utilisation)).powf(1.0 / 2.4).min(1.0)
}

#[test]
fn power_figures_show_what_was_observed() {
    // The edge study: two networks, one on each half of the Nano's SMs, at the activity that the simulator finds.
    let nano = clock_under_cap(gpu("orin-nano"), 0.63);
    assert!((0.45..=0.55).contains(&nano), "{nano}");
    // Known limit of the model: one network alone is throttled too, and doubling takes off only a quarter more.
    let alone = clock_under_cap(gpu("orin-nano"), 0.315);
    assert!((0.62..=0.72).contains(&alone), "{alone}");
    assert_eq!(clock_under_cap(gpu("agx-orin"), 1.0), 1.0);
    for id in ["h200", "h100-sxm", "h100-pcie", "a100-40gb", "a100-80gb", "l4", "l40s"] {
        // One network that fills two thirds of the GPU does not reach the cap; a matrix product on all of it does.
        assert_eq!(clock_under_cap(gpu(id), 0.67), 1.0, "{id}");
        let product = clock_under_cap(gpu(id), 1.0);
        assert!((0.90..=0.95).contains(&product), "{id}: {product}");
    }
}

#[test]
fn the_document_names_every_gpu_and_every_source() {
    let document = markdown(builtin());
    for gpu in builtin().iter() {
        assert!(document.contains(&format!("\n## `{}`: {}\n", gpu.id, gpu.name)), "{}", gpu.id);
        for figure in check::figures(gpu) {
            let row = format!("| {} | {} |", figure.kind.word(), figure.source);
            assert!(document.contains(&row), "{}: {row}", gpu.id);
        }
        for profile in gpu.mig.iter().flat_map(|mig| &mig.profiles) {
            assert!(
                document.contains(&format!("| `{}` | {} |", profile.name, profile.id)),
                "{}",
                profile.name
            );
        }
    }
    // Every line of a table has as many cells as its head.
    let mut cells = None;
    for line in document.lines() {
        let count = line.replace("\\|", "").matches('|').count();
        assert!(count == 0 || cells.is_none_or(|cells| cells == count), "{line}");
        cells = (count > 0).then_some(count);
    }
}

#[test]
fn the_document_survives_odd_text() {
    let text = text_of("l4").replacen("NVIDIA L4", "a|b", 1);
    let document = markdown(&Catalogue::parse(&[("x", &text)]).unwrap());
    assert!(document.contains("## `l4`: a\\|b\n"));
    assert!(markdown(&Catalogue::parse(&[]).unwrap()).starts_with("# GPUs\n"));
}

/// Every way to use the instances' starts, without cleverness: what the search must agree with.
fn exists(mig: &Mig, wanted: &[&str], taken: u32) -> bool {
    let Some((name, rest)) = wanted.split_first() else { return true };
    let profile = mig.profile(name).unwrap();
    let run = (1_u32 << profile.memory_slices) - 1;
    profile
        .placements
        .iter()
        .any(|start| taken & (run << start) == 0 && exists(mig, rest, taken | (run << start)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_text_panics(text in ".{0,200}") {
        let _ = Gpu::parse(&text, "x.toml");
        let _ = builtin().get(&text);
        let _ = gpu("h200").mig.as_ref().unwrap().place(&[&text]);
    }

    /// Whatever happens to a sound file, it is refused with a place or a reason, or is sound again.
    #[test]
    fn damaged_files_never_panic(
        file in 0..FILES.len(),
        cut in any::<prop::sample::Index>(),
        length in 0_usize..12,
        patch in prop_oneof!["[ -~\n]{0,4}", Just("-1".to_owned()), Just("4294967295".to_owned()),
                             Just("nan".to_owned()), Just("1e308".to_owned()), Just("é".to_owned())],
    ) {
        let text = FILES[file].1;
        prop_assert!(text.is_ascii(), "cuts anywhere");
        let from = cut.index(text.len());
        let to = (from + length).min(text.len());
        let damaged = format!("{}{patch}{}", &text[..from], &text[to..]);
        match Gpu::parse(&damaged, "x.toml") {
            Ok(gpu) => prop_assert!(gpu.validate().is_empty()),
            Err(CatalogueError::Syntax { line, column, message, .. }) => {
                prop_assert!(line >= 1 && line <= damaged.lines().count() + 1 && column >= 1);
                prop_assert!(!message.is_empty());
            }
            Err(CatalogueError::Invalid { problems, .. }) => prop_assert!(!problems.is_empty()),
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    /// Numbers are where arithmetic could go wrong: any numbers in a MIG table.
    #[test]
    fn any_mig_numbers_are_checked_without_panic(
        slices in any::<u32>(), width in any::<u32>(), sms in any::<u32>(), memory in any::<f64>(),
        instances in any::<u32>(), placements in prop::collection::vec(any::<u32>(), 0..6),
    ) {
        let mut gpu = gpu("h200").clone();
        let mig = gpu.mig.as_mut().unwrap();
        mig.memory_slices = if slices % 3 == 0 { slices } else { slices % 20 };
        let profile = &mut mig.profiles[4];
        (profile.memory_slices, profile.sms.value, profile.memory_gib.value) = (width, sms, memory);
        (profile.instances, profile.placements) = (instances, placements);
        let name = profile.name.clone();
        let _ = gpu.validate();
        let _ = gpu.mig.as_ref().unwrap().place(&[&name]);
    }

    #[test]
    fn placements_are_allowed_and_apart_and_found_when_they_exist(
        id in prop::sample::select(vec!["h200", "h100-pcie", "a100-40gb"]),
        picks in prop::collection::vec(0_usize..7, 0..9),
    ) {
        let mig = gpu(id).mig.as_ref().unwrap();
        let wanted: Vec<&str> = picks.iter().map(|&i| mig.profiles[i].name.as_str()).collect();
        let count = |name: &str| wanted.iter().filter(|other| **other == name).count();
        let allowed = mig.profiles.iter().all(|p| count(&p.name) <= p.instances as usize);
        match mig.place(&wanted) {
            Ok(placed) => {
                prop_assert!(allowed);
                let mut taken = 0_u32;
                for (instance, name) in placed.iter().zip(&wanted) {
                    prop_assert_eq!(&instance.profile.name, name);
                    prop_assert!(instance.profile.placements.contains(&instance.start));
                    let run = ((1_u32 << instance.profile.memory_slices) - 1) << instance.start;
                    prop_assert_eq!(taken & run, 0);
                    taken |= run;
                }
                prop_assert_eq!(placed.len(), wanted.len());
            }
            Err(_) => prop_assert!(!allowed || !exists(mig, &wanted, 0)),
        }
    }
}
