package main

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

// bill writes the list of what a binary consists of, in CycloneDX's JSON.
func bill(src source, t target, parts []part, binary, path string) error {
	hash := sha256.New()
	if err := copyFile(hash, binary); err != nil {
		return err
	}
	main := cyclonedx.Component{
		BOMRef: "weir", Type: cyclonedx.ComponentTypeApplication, Name: "weir", Version: src.version,
		PackageURL: fmt.Sprintf("pkg:generic/weir@%s?os=%s&arch=%s", src.version, t.os, t.arch),
		Licenses:   licenceOf("Apache-2.0"),
		Hashes:     &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(hash.Sum(nil))}},
		Properties: &[]cyclonedx.Property{{Name: "vcs.revision", Value: src.commit}},
	}
	var components []cyclonedx.Component
	var uses []string
	for _, p := range parts {
		c := cyclonedx.Component{
			BOMRef: p.purl, Type: cyclonedx.ComponentTypeLibrary, Name: p.name, Version: p.version,
			PackageURL: p.purl, Licenses: licenceOf(p.licence), Scope: cyclonedx.ScopeRequired,
		}
		if p.sum != "" {
			sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(p.sum, "h1:"))
			if err != nil {
				return fmt.Errorf("the hash of %s: %w", p.name, err)
			}
			c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
		}
		components, uses = append(components, c), append(uses, p.purl)
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &main, Timestamp: src.time.Format(time.RFC3339)}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: main.BOMRef, Dependencies: &uses}}
	return write(path, func(w io.Writer) error {
		return cyclonedx.NewBOMEncoder(w, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	})
}

func licenceOf(id string) *cyclonedx.Licenses {
	return &cyclonedx.Licenses{{License: &cyclonedx.License{ID: id}}}
}
