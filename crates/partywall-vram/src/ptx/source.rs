//! A module's text as functions and instructions, each with its place.
//!
//! Nothing is printed anew: an instruction is a range of the text, and who changes something puts other text in place of such ranges. So
//! what is not changed stays as it was, to the last blank.

use std::ops::Range;

/// Longest text that is read, bytes. What compilers make of one network is a few MiB.
pub const TEXT_MAX: usize = 256 << 20;

/// A module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module<'a> {
    /// The whole text.
    pub text: &'a str,
    /// What its first directives say.
    pub header: Header,
    /// Where the first declaration begins.
    pub begin: usize,
    /// Functions with a body, in their order.
    pub functions: Vec<Function<'a>>,
    /// Names of variables that the module has in global memory or refers to there.
    pub globals: Vec<&'a str>,
}

/// What a module says of itself; 0 where it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// Of the language, `.version 8.7`: 807.
    pub version: u32,
    /// `.target sm_90a`: 90.
    pub target: u32,
    /// `.address_size 64`.
    pub address_bits: u32,
}

/// A function with a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function<'a> {
    /// What it is called.
    pub name: &'a str,
    /// Whether it is a kernel.
    pub is_entry: bool,
    /// Where its body begins: the place behind the brace.
    pub begin: usize,
    /// Registers as they are declared.
    pub registers: Vec<Register<'a>>,
    /// Its instructions.
    pub instructions: Vec<Instruction<'a>>,
}

/// A declared register, or as many as a declaration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register<'a> {
    /// What it is called; of `%r<9>` it is `%r`.
    pub name: &'a str,
    /// Its type without the dot, such as `b32`.
    pub kind: &'a str,
    /// Whether numbers follow the name, as in `%r<9>`.
    pub is_numbered: bool,
}

impl Register<'_> {
    /// Whether it is, or one of them is, called that.
    pub fn is(&self, name: &str) -> bool {
        match name.strip_prefix(self.name) {
            Some(rest) if self.is_numbered => {
                !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit())
            }
            Some(rest) => rest.is_empty(),
            None => false,
        }
    }
}

/// An instruction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instruction<'a> {
    /// Where it is, from the guard to the semicolon.
    pub place: Range<usize>,
    /// In which line, counted from 1.
    pub line: usize,
    /// `@%p` or `@!%p`, as written.
    pub guard: Option<&'a str>,
    /// Such as `ld.global.v4.b32`.
    pub opcode: &'a str,
    /// Where the opcode is.
    pub opcode_place: Range<usize>,
    /// Where the operands are, without blanks around them.
    pub operands: Vec<Range<usize>>,
}

/// Why a text is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Too long.
    #[error("{0} bytes of PTX are more than the {TEXT_MAX} that are read")]
    TooLong(usize),
    /// It ends in the middle of something.
    #[error("line {line}: {what} has no end")]
    Unended {
        /// Where it began.
        line: usize,
        /// What.
        what: &'static str,
    },
    /// Something is where it cannot be.
    #[error("line {line}: `{found}` where {expected} is expected")]
    Unexpected {
        /// Where.
        line: usize,
        /// What is there.
        found: String,
        /// What could be.
        expected: &'static str,
    },
}

/// Reads a module.
///
/// # Errors
/// Where the text is not built as PTX is. Whether its instructions exist is not asked.
pub fn read(text: &str) -> Result<Module<'_>, SourceError> {
    if text.len() > TEXT_MAX {
        return Err(SourceError::TooLong(text.len()));
    }
    let tokens = tokens(text)?;
    let mut reader = Reader { text, tokens, next: 0 };
    let header = Header::default();
    let mut module = Module { text, header, begin: text.len(), functions: Vec::new(), globals: Vec::new() };
    while let Some(token) = reader.peek() {
        match token.text(text) {
            directive if ends_with_its_line(directive) => {
                module.header.learn(directive, reader.word_after());
                reader.line();
            }
            ".section" => reader.section()?,
            _ => {
                module.begin = module.begin.min(token.begin);
                reader.declaration(&mut module)?;
            }
        }
    }
    Ok(module)
}

impl Header {
    fn learn(&mut self, directive: &str, word: &str) {
        let number = |text: &str| text.parse::<u32>().unwrap_or_default();
        match directive {
            ".version" => {
                let (major, minor) = word.split_once('.').unwrap_or((word, "0"));
                self.version = number(major).saturating_mul(100).saturating_add(number(minor));
            }
            ".target" => {
                let digits =
                    word.trim_start_matches("sm_").trim_end_matches(|last: char| last.is_ascii_alphabetic());
                self.target = number(digits);
            }
            ".address_size" => self.address_bits = number(word),
            _ => {}
        }
    }
}

impl<'a> Instruction<'a> {
    /// The text of an operand.
    pub fn operand(&self, module: &Module<'a>, index: usize) -> Option<&'a str> {
        self.operands.get(index).map(|place| &module.text[place.clone()])
    }

    /// The parts of the opcode, between dots: `ld`, `global`, `v4`, `b32`.
    pub fn parts(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.opcode.split('.')
    }
}

/// Directives that no semicolon ends.
fn ends_with_its_line(word: &str) -> bool {
    matches!(word, ".version" | ".target" | ".address_size" | ".file" | ".loc")
}

/// A word, a string or a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Token {
    begin: usize,
    end: usize,
    line: usize,
}

impl Token {
    fn text<'a>(&self, text: &'a str) -> &'a str {
        &text[self.begin..self.end]
    }
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

fn tokens(text: &str) -> Result<Vec<Token>, SourceError> {
    let bytes = text.as_bytes();
    let (mut tokens, mut at, mut line) = (Vec::new(), 0, 1);
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let begin = at;
        match byte {
            b'\n' => {
                line += 1;
                at += 1;
                continue;
            }
            _ if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            _ if rest.starts_with(b"//") => {
                at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
                continue;
            }
            _ if rest.starts_with(b"/*") => {
                let end = text[at..].find("*/").ok_or(SourceError::Unended { line, what: "a comment" })?;
                line += rest[..end].iter().filter(|&&byte| byte == b'\n').count();
                at += end + 2;
                continue;
            }
            b'"' => {
                let end = rest[1..].iter().position(|&byte| byte == b'"');
                at += end.ok_or(SourceError::Unended { line, what: "a string" })? + 2;
            }
            _ if is_of_word(byte) => {
                // `shared::cta` is one word, `label:` is not.
                while bytes.get(at).is_some_and(|&byte| is_of_word(byte)) || bytes[at..].starts_with(b"::") {
                    at += if bytes[at] == b':' { 2 } else { 1 };
                }
            }
            // Any other character is a sign, whatever it takes in UTF-8.
            _ => at += text[at..].chars().next().map_or(1, char::len_utf8),
        }
        tokens.push(Token { begin, end: at, line });
    }
    Ok(tokens)
}

struct Reader<'a> {
    text: &'a str,
    tokens: Vec<Token>,
    next: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<Token> {
        self.tokens.get(self.next).copied()
    }

    fn take(&mut self, began: Token, what: &'static str) -> Result<Token, SourceError> {
        let token = self.peek().ok_or(SourceError::Unended { line: began.line, what })?;
        self.next += 1;
        Ok(token)
    }

    /// The word behind the next one, or nothing.
    fn word_after(&self) -> &'a str {
        self.tokens.get(self.next + 1).map_or("", |token| token.text(self.text))
    }

    fn is(&self, sign: &str) -> bool {
        self.peek().is_some_and(|token| token.text(self.text) == sign)
    }

    /// Skips what is in the line.
    fn line(&mut self) {
        let line = self.peek().map(|token| token.line);
        while self.peek().is_some_and(|token| Some(token.line) == line) {
            self.next += 1;
        }
    }

    /// Skips a section of data for debuggers.
    fn section(&mut self) -> Result<(), SourceError> {
        let Some(began) = self.peek() else { return Ok(()) };
        while self.take(began, "a section")?.text(self.text) != "{" {}
        while self.take(began, "a section")?.text(self.text) != "}" {}
        Ok(())
    }

    /// A variable, the head of a function, or a function.
    fn declaration(&mut self, module: &mut Module<'a>) -> Result<(), SourceError> {
        let Some(began) = self.peek() else { return Ok(()) };
        let first = began.text(self.text);
        if first == ";" {
            self.next += 1;
            return Ok(());
        }
        if !first.starts_with('.') {
            return Err(self.unexpected(began, "a directive"));
        }
        let (mut is_function, mut is_entry, mut is_global) = (false, false, false);
        let mut name = None;
        let mut depth = 0_usize;
        loop {
            let token = self.take(began, "a declaration")?;
            let word = token.text(self.text);
            match word {
                "{" if is_function && depth == 0 => {
                    let mut function = Function {
                        name: name.unwrap_or_default(),
                        is_entry,
                        begin: token.end,
                        registers: Vec::new(),
                        instructions: Vec::new(),
                    };
                    self.body(token, &mut function)?;
                    module.functions.push(function);
                    return Ok(());
                }
                "(" | "{" | "[" => depth += 1,
                ")" | "}" | "]" => {
                    depth = depth.checked_sub(1).ok_or_else(|| self.unexpected(token, "a declaration"))?;
                }
                ";" if depth == 0 => {
                    if is_global {
                        module.globals.extend(name);
                    }
                    return Ok(());
                }
                ".entry" => (is_function, is_entry) = (true, true),
                ".func" => is_function = true,
                ".global" if depth == 0 => is_global = true,
                // Behind the name of a function come its attributes, behind that of a variable its size and value.
                _ if depth == 0 && name.is_none() && starts_a_name(word) => name = Some(word),
                _ => {}
            }
        }
    }

    fn body(&mut self, began: Token, function: &mut Function<'a>) -> Result<(), SourceError> {
        let mut depth = 1_usize;
        while depth > 0 {
            let token = self.take(began, "the body of a function")?;
            match token.text(self.text) {
                "{" => depth += 1,
                "}" => depth -= 1,
                ";" => {}
                "@" => {
                    if self.is("!") {
                        self.next += 1;
                    }
                    let guard = self.take(token, "a guard")?;
                    let opcode = self.take(token, "an instruction")?;
                    let guard = &self.text[token.begin..guard.end];
                    function.instructions.push(self.instruction(token, Some(guard), opcode)?);
                }
                ".reg" => {
                    let begin = self.next;
                    self.statement(token)?;
                    let mut words =
                        self.tokens[begin..self.next].iter().map(|token| token.text(self.text)).peekable();
                    let mut kind = "";
                    while let Some(word) = words.next() {
                        if starts_a_name(word) {
                            let is_numbered = words.peek() == Some(&"<");
                            function.registers.push(Register { name: word, kind, is_numbered });
                        } else if let Some(word) = word.strip_prefix('.') {
                            kind = word;
                        }
                    }
                }
                word if word.starts_with('.') => {
                    self.next -= 1;
                    if ends_with_its_line(word) { self.line() } else { self.statement(token)? }
                }
                word if starts_a_name(word) && self.is(":") => self.next += 1,
                word if starts_a_name(word) => {
                    function.instructions.push(self.instruction(token, None, token)?)
                }
                _ => return Err(self.unexpected(token, "an instruction")),
            }
        }
        Ok(())
    }

    /// Skips a directive to its semicolon.
    fn statement(&mut self, began: Token) -> Result<(), SourceError> {
        while self.take(began, "a directive")?.text(self.text) != ";" {}
        Ok(())
    }

    fn instruction(
        &mut self,
        began: Token,
        guard: Option<&'a str>,
        opcode: Token,
    ) -> Result<Instruction<'a>, SourceError> {
        let word = opcode.text(self.text);
        if !starts_a_name(word) {
            return Err(self.unexpected(opcode, "an instruction"));
        }
        let mut operands = Vec::new();
        let mut operand: Option<Range<usize>> = None;
        let mut depth = 0_usize;
        loop {
            let token = self.take(began, "an instruction")?;
            match token.text(self.text) {
                ";" if depth == 0 => {
                    operands.extend(operand);
                    let (place, opcode_place) = (began.begin..token.end, opcode.begin..opcode.end);
                    return Ok(Instruction {
                        place,
                        line: opcode.line,
                        guard,
                        opcode: word,
                        opcode_place,
                        operands,
                    });
                }
                "," if depth == 0 => {
                    operands.extend(operand.take());
                    continue;
                }
                "(" | "{" | "[" => depth += 1,
                ")" | "}" | "]" => {
                    depth = depth.checked_sub(1).ok_or_else(|| self.unexpected(token, "an operand"))?;
                }
                _ => {}
            }
            let begin = operand.map_or(token.begin, |operand| operand.start);
            operand = Some(begin..token.end);
        }
    }

    fn unexpected(&self, token: Token, expected: &'static str) -> SourceError {
        SourceError::Unexpected { line: token.line, found: token.text(self.text).to_owned(), expected }
    }
}

fn starts_a_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_ascii_alphabetic() || matches!(first, '_' | '$' | '%'))
}

#[cfg(test)]
mod tests;
