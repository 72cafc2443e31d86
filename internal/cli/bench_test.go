package cli

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// benchReport is the part of a report that tests look at.
type benchReport struct {
	Requests, Complete, Errored int
	Errors                      map[string]int
	Verdict                     struct{ Trust string }
}

func readReport(t *testing.T, text string) (r benchReport) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return r
}

// readRows reads a CSV as a map for each row.
func readRows(t *testing.T, file string) (rows []map[string]string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	for _, values := range all[1:] {
		row := map[string]string{}
		for k, v := range values {
			row[all[0][k]] = v
		}
		rows = append(rows, row)
	}
	return rows
}

// Each way in which a server fails has its kind, and no failed request is
// missing from the counts.
func TestBenchFaults(t *testing.T) {
	t.Parallel()
	const chunk = `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"
	stream := func(w http.ResponseWriter, text string) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, text)
	}
	for _, c := range []struct {
		name   string
		kind   string
		answer func(http.ResponseWriter, *http.Request)
	}{
		{"refuses", "status_503", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error":{"message":"full"}}`, http.StatusServiceUnavailable)
		}},
		{"redirects", "status_302", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }},
		{"dies", "cut", func(w http.ResponseWriter, _ *http.Request) {
			stream(w, chunk)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
		{"stalls", "timeout", func(w http.ResponseWriter, r *http.Request) {
			stream(w, chunk)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}},
		{"sends garbage", "bad_event", func(w http.ResponseWriter, _ *http.Request) { stream(w, "data: nonsense\n\ndata: [DONE]\n\n") }},
		{"truncates", "no_done", func(w http.ResponseWriter, _ *http.Request) { stream(w, chunk) }},
		{"200 and then an error", "error_event", func(w http.ResponseWriter, _ *http.Request) {
			stream(w, chunk+`data: {"error":{"message":"out of memory"}}`+"\n\ndata: [DONE]\n\n")
		}},
		{"is no API", "content_type", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>hello</html>") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(c.answer))
			defer s.Close()
			file := filepath.Join(t.TempDir(), "r.csv")
			timeout := "1m" // which nobody waits for
			if c.kind == "timeout" {
				timeout = "300ms"
			}
			code, out, _ := run(t, "bench", s.URL, "--model", "m", "--concurrency", "2", "--requests", "6", "--timeout", timeout, "--json", "-", "--csv", file)
			r := readReport(t, out)
			if code != 1 || r.Requests != 6 || r.Errored != 6 || r.Complete != 0 || r.Errors[c.kind] != 6 || r.Verdict.Trust != "INVALID" {
				t.Errorf("exit code %d, %+v", code, r)
			}
			rows := readRows(t, file)
			for _, row := range rows {
				if row["outcome"] != "errored" || row["error"] != c.kind || row["error_detail"] == "" {
					t.Errorf("%v", row)
				}
			}
			if len(rows) != 6 {
				t.Errorf("%d rows", len(rows))
			}
		})
	}
	t.Run("is not there", func(t *testing.T) {
		code, out, _ := run(t, "bench", "http://127.0.0.1:1", "--model", "m", "--requests", "3", "--json", "-")
		if r := readReport(t, out); code != 1 || r.Errors["connect"] != 3 {
			t.Errorf("exit code %d, %+v", code, r)
		}
	})
	t.Run("speaks no TLS", func(t *testing.T) {
		s := httptest.NewServer(http.NotFoundHandler())
		defer s.Close()
		code, out, _ := run(t, "bench", strings.Replace(s.URL, "http:", "https:", 1), "--model", "m", "--requests", "3", "--json", "-")
		if r := readReport(t, out); code != 1 || r.Errors["connect"] != 3 {
			t.Errorf("exit code %d, %+v", code, r)
		}
	})
}

// A server whose models cannot be read is loaded all the same by an API that needs
// none, and what the report lacks by that is said.
func TestBenchWithoutModels(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	const approximate, unverified = "lengths of prompts are approximate", "text is not verified"
	for _, test := range []struct {
		args []string
		says []string
	}{
		{nil, []string{"the server's models cannot be read: /v1/models: status 404, so " + approximate + " and " + unverified, "if the server has weir-sim, add --model weir-sim\n"}},
		{[]string{"--verify", "off"}, []string{"so " + approximate + ";"}},
		{[]string{"--tokenizer", "../../models/weir-sim"}, []string{"so " + unverified + ";"}},
		{[]string{"--tokenizer", "../../models/weir-sim", "--verify", "off"}, nil},
		{[]string{"--verify", "on"}, nil},
		{[]string{"--model", "m"}, nil},
	} {
		args := append([]string{"bench", s.URL, "--api", "sglang-generate", "--requests", "2", "--progress", "off", "--json", "-"}, test.args...)
		code, out, stderr := run(t, args...)
		if r := readReport(t, out); code != 1 || r.Errors["status_404"] != 2 {
			t.Errorf("%v: exit code %d, %+v", test.args, code, r)
		}
		for _, part := range test.says {
			if !strings.Contains(stderr, part) {
				t.Errorf("%v: %q lacks %q", test.args, stderr, part)
			}
		}
		if test.says == nil && stderr != "" {
			t.Errorf("%v: %s", test.args, stderr)
		}
	}
}
