// Package soak tests that streams which come and go for a while leave nothing behind.
package soak

import (
	"testing"

	"weir/test/e2e/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
