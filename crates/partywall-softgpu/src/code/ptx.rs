//! What a launch needs to know of a PTX text: its kernels with their parameters, and its global variables.
//!
//! The text is not compiled. Nothing checks that its instructions are right.

/// A kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    /// Offset and size of each parameter, bytes.
    pub(crate) parameters: Vec<(usize, usize)>,
    /// `.maxntid` or `.reqntid`: most threads of a block.
    pub(crate) threads_max: Option<u32>,
    /// Shared memory that it declares, bytes.
    pub(crate) shared: u32,
}

/// A variable in global memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// What a text has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ptx {
    pub(crate) kernels: Vec<Kernel>,
    pub(crate) variables: Vec<Variable>,
}

/// Reads a text; what is wrong with it, otherwise.
pub(crate) fn parse(text: &str) -> Result<Ptx, String> {
    let text = without_comments(text);
    if !text.contains(".version") || !text.contains(".target") {
        return Err("not PTX: it has no .version and .target".to_owned());
    }
    let mut ptx = Ptx::default();
    for part in text.split(".entry").skip(1) {
        ptx.kernels.push(kernel(part)?);
    }
    // Depth of braces tells the module's variables from those of functions.
    let mut depth = 0_i32;
    for line in text.lines() {
        if depth == 0 && line.contains(".global") {
            ptx.variables.extend(declared(line, ".global").map(|(name, bytes)| Variable { name, bytes }));
        }
        depth += line.matches('{').count() as i32 - line.matches('}').count() as i32;
    }
    Ok(ptx)
}

fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("/*") {
        kept.push_str(&rest[..at]);
        rest = rest[at..].split_once("*/").map_or("", |(_, after)| after);
    }
    kept.push_str(rest);
    let lines = kept.lines().map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// What follows the word `.entry`.
fn kernel(part: &str) -> Result<Kernel, String> {
    let body = part.find('{').unwrap_or(part.len());
    let (head, body) = part.split_at(body);
    let (name, rest) = head.split_once('(').unwrap_or((head, ")"));
    let name = name.split_whitespace().next().unwrap_or_default().to_owned();
    if name.is_empty() {
        return Err("a kernel without a name".to_owned());
    }
    let (list, directives) =
        rest.rsplit_once(')').ok_or_else(|| format!("the parameters of `{name}` do not end"))?;
    let mut parameters: Vec<(usize, usize)> = Vec::new();
    for parameter in list.split(',').filter(|parameter| parameter.contains(".param")) {
        let (size, alignment) =
            layout(parameter).ok_or_else(|| format!("a parameter of `{name}`: {}", parameter.trim()))?;
        let end = parameters.last().map_or(0, |(offset, size)| offset + size);
        parameters.push((end.next_multiple_of(alignment), size));
    }
    let threads_max = [".maxntid", ".reqntid"].iter().find_map(|word| threads(directives, word));
    let shared = body.lines().filter(|line| line.contains(".shared") && !line.contains(".extern"));
    let shared = shared.flat_map(|line| declared(line, ".shared")).map(|(_, bytes)| bytes).sum::<u64>();
    Ok(Kernel { name, parameters, threads_max, shared: u32::try_from(shared).unwrap_or(u32::MAX) })
}

/// Size and alignment of one parameter.
fn layout(parameter: &str) -> Option<(usize, usize)> {
    let words = || parameter.split_whitespace();
    let size = words().find_map(type_bytes)?;
    let after = |word: &str| words().skip_while(|found| *found != word).nth(1)?.parse::<usize>().ok();
    // `.ptr .global .align 16` is about what a pointer points to, not about the parameter.
    let alignment = if parameter.contains(".ptr") { None } else { after(".align") };
    let alignment = alignment.unwrap_or(size).clamp(1, 256);
    let count = parameter.split_once('[').and_then(|(_, rest)| rest.split_once(']')?.0.trim().parse().ok());
    (alignment.is_power_of_two()).then_some((size.checked_mul(count.unwrap_or(1))?.min(1 << 16), alignment))
}

fn type_bytes(word: &str) -> Option<usize> {
    Some(match word {
        ".u8" | ".s8" | ".b8" => 1,
        ".u16" | ".s16" | ".b16" | ".f16" => 2,
        ".u32" | ".s32" | ".b32" | ".f32" | ".f16x2" => 4,
        ".u64" | ".s64" | ".b64" | ".f64" => 8,
        _ => return None,
    })
}

fn threads(directives: &str, word: &str) -> Option<u32> {
    let (_, rest) = directives.split_once(word)?;
    let numbers = rest.trim_start().split(|c: char| !c.is_ascii_digit() && c != ',' && c != ' ').next()?;
    let numbers = numbers.split(',').map_while(|number| number.trim().parse::<u32>().ok());
    numbers.take(3).fold(None, |product, number| Some(product.unwrap_or(1_u32).saturating_mul(number)))
}

/// The variable that a line declares in a state space, with its size; an array without a size has none.
fn declared<'a>(line: &'a str, space: &str) -> impl Iterator<Item = (String, u64)> + use<'a> {
    let found = line.split_once(space).and_then(|(_, rest)| {
        let rest = rest.split(['=', ';']).next()?;
        let size = rest.split_whitespace().find_map(type_bytes)? as u64;
        let name = rest.split('[').next()?.split_whitespace().last()?.to_owned();
        let count = match rest.split_once('[') {
            Some((_, after)) => after.split_once(']')?.0.trim().parse().unwrap_or(0),
            None => 1,
        };
        Some((name, size.saturating_mul(count)))
    });
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SAMPLE: &str = "
// a comment with .entry nothing(
.version 8.4
.target sm_70
.address_size 64
.visible .global .align 4 .u32 counter = 1;
.global .align 16 .b8 table[64];
.visible .entry first(
    .param .u64 .ptr .global .align 16 first_param_0,
    .param .u32 first_param_1,
    .param .u64 first_param_2,
    .param .align 8 .b8 first_param_3[24]
)
.maxntid 128, 1, 1
{
    .shared .align 4 .b8 warps[128];
    ld.global.u32 %r1, [%rd1];
    ret;
}
.visible .entry second()
{
    ret;
}
";

    #[test]
    fn kernels_have_parameters_and_limits() {
        let ptx = parse(SAMPLE).unwrap();
        let [first, second] = ptx.kernels.as_slice() else { panic!("{ptx:?}") };
        assert_eq!((first.name.as_str(), first.threads_max, first.shared), ("first", Some(128), 128));
        assert_eq!(first.parameters, [(0, 8), (8, 4), (16, 8), (24, 24)]);
        assert_eq!((second.name.as_str(), second.parameters.len(), second.threads_max), ("second", 0, None));
        let variables: Vec<_> = ptx.variables.iter().map(|one| (one.name.as_str(), one.bytes)).collect();
        assert_eq!(variables, [("counter", 4), ("table", 64)]);
    }

    #[test]
    fn what_is_no_ptx_is_said() {
        assert!(parse("int main() {}").unwrap_err().contains("not PTX"));
        assert!(parse(".version 8.4\n.target sm_70\n.entry (").unwrap_err().contains("without a name"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn no_text_is_trouble(cut in 0..SAMPLE.len(), junk in "[.{}()\\[\\]a-z0-9,;= \n]{0,80}") {
            let text = format!("{}{junk}{}", &SAMPLE[..cut], &SAMPLE[cut..]);
            let _ = parse(&text);
        }
    }
}
