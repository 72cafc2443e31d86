package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A file is a text that travels with the binary.
type file struct {
	name string
	text []byte
}

// found is a part and the folder of its source.
type found struct {
	part
	dir string
}

// noticeNames are the files that licences ask to be kept: Apache's NOTICE, a licence,
// a grant of patents.
var noticeNames = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)(\.(md|txt))?$`)

// read takes the part's licences from its folder. A part without any must not be
// given to others, and so is an error.
func (f *found) read() error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	for _, e := range entries {
		if e.IsDir() || !noticeNames.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(f.dir, e.Name()))
		if err != nil {
			return err
		}
		f.files = append(f.files, file{e.Name(), text})
	}
	if len(f.files) == 0 {
		return fmt.Errorf("%s %s has no licence in %s", f.name, f.version, f.dir)
	}
	for _, text := range f.files {
		if id := recognise(string(text.text)); id != "" {
			f.licence = id
			return nil
		}
	}
	return fmt.Errorf("%s %s: no known licence in %s; read it, and add its words to known", f.name, f.version, f.dir)
}

// known has the licences that may be passed on with a binary, each with words that it
// has and words that only a longer one of its kind has. A dependency under another one
// is a decision of somebody's, so it is an error.
var known = []struct {
	id      string
	has     []string
	without string
}{
	{"Apache-2.0", []string{"apache license", "version 2.0", "grant of patent license"}, ""},
	{"BSD-3-Clause", []string{"redistribution and use in source and binary forms", "redistributions in binary form must", "neither the name"}, "all advertising materials"},
	{"BSD-2-Clause", []string{"redistribution and use in source and binary forms", "redistributions in binary form must"}, "neither the name"},
	{"MIT", []string{"permission is hereby granted, free of charge", "the above copyright notice and this permission notice"}, "shall not be used in advertising"},
	{"ISC", []string{"permission to use, copy, modify, and", "distribute this software for any purpose", "appear in all copies"}, ""},
}

var spaces = regexp.MustCompile(`\s+`)

// recognise returns the SPDX name of a licence's text, empty where it is none of known.
func recognise(text string) string {
	text = strings.ToLower(spaces.ReplaceAllString(text, " "))
	for _, k := range known {
		if !slices.ContainsFunc(k.has, func(words string) bool { return !strings.Contains(text, words) }) &&
			(k.without == "" || !strings.Contains(text, k.without)) {
			return k.id
		}
	}
	return ""
}

// licences makes one text of all parts' licences.
func licences(parts []part) []byte {
	line := strings.Repeat("=", 78)
	var b strings.Builder
	b.WriteString("weir is under the Apache License 2.0 (LICENSE). Its binary contains the works below, under their own licences.\n")
	for _, p := range parts {
		for _, f := range p.files {
			fmt.Fprintf(&b, "\n%s\n%s %s: %s\n%s\n\n%s\n", line, p.name, p.version, f.name, line, strings.TrimSpace(string(f.text)))
		}
	}
	return []byte(b.String())
}
