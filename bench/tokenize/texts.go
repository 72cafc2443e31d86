package main

import (
	"fmt"
	"os"
	"strings"
	"unicode/utf8"

	"weir/internal/workload/gotext"
)

// sample is a prompt to encode.
type sample struct{ name, text string }

// The two lengths of prompts, in bytes.
const (
	shortPrompt = 2 << 10
	longPrompt  = 160 << 10
)

// longEnglish is the index of the long English prompt among the samples.
const longEnglish = 5

// samples returns the prompts. Some come from Go's own documentation and sources,
// the others are made up.
func samples() ([]sample, error) {
	english, err := goText(longPrompt, ".html", ".md")
	if err != nil {
		return nil, err
	}
	code, err := goText(longPrompt, ".go")
	if err != nil {
		return nil, err
	}
	chinese := "数据库连接失败,请检查网络设置后重试。这是一段用来测量速度的文本,其中有各种常见的汉字和标点:编译器、操作系统、分布式存储、人工智能。"
	emoji := "Great work 👍🏽! The family 👩‍👩‍👧‍👦 went to 🇯🇵 and 🇩🇪 — cost: 1️⃣2️⃣ €, ok ❤️? нормально, 좋아요, 良い。\n"
	var out []sample
	for _, size := range []int{shortPrompt, longPrompt} {
		label := fmt.Sprintf(" %dK", size>>10)
		out = append(out,
			sample{"english" + label, prefix(english, size)},
			sample{"code" + label, prefix(code, size)},
			sample{"chinese" + label, prefix(repeated(chinese, size), size)},
			sample{"emoji" + label, prefix(repeated(emoji, size), size)},
			sample{"spaces" + label, prefix(repeated("    \n\t  \n\n        ", size), size)})
	}
	return append(out,
		sample{"a 1M", strings.Repeat("a", 1<<20)},
		sample{"space 1M", strings.Repeat(" ", 1<<20)},
		sample{"mark 1M", strings.Repeat("\u0301", 1<<19)}), nil
}

func repeated(s string, size int) string { return strings.Repeat(s, size/len(s)+1) }

// prefix cuts s to at most size bytes, between runes.
func prefix(s string, size int) string {
	s = s[:min(len(s), size)]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}

// goText returns text of Go's tree, taken from files all over it.
func goText(size int, suffixes ...string) (string, error) {
	paths, err := gotext.Paths(suffixes...)
	if err != nil {
		return "", err
	}
	const part = 40 << 10
	want := size/part + 1
	step := max(1, len(paths)/(2*want))
	var b strings.Builder
	for i := 0; i < len(paths)*step && b.Len() < size; i += step {
		data, err := os.ReadFile(paths[(i+i/len(paths))%len(paths)])
		if err != nil {
			return "", err
		}
		b.WriteString(prefix(strings.ToValidUTF8(string(data), "?"), part))
	}
	if b.Len() < size {
		return "", fmt.Errorf("only %d bytes of %v in Go's tree", b.Len(), suffixes)
	}
	return b.String(), nil
}
