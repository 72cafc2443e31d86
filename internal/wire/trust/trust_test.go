package trust

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file that cannot be used is named in the error.
func TestAuthoritiesRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.pem")
	for _, text := range []string{"", "no PEM", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Authorities(file); err == nil || !strings.Contains(err.Error(), file+" has no certificate as PEM") {
			t.Errorf("%q: got %v", text, err)
		}
	}
	if _, err := Authorities(file + ".gone"); err == nil || !strings.Contains(err.Error(), file+".gone") {
		t.Errorf("a missing file: got %v", err)
	}
}
