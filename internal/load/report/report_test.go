package report

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"weir/internal/load"
	"weir/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The columns that others read begin the header, in their order.
const wanted = "request_id,engine,prefill_engine,attempts,arrival_time,to_server_time,server_created_time,queue_time_start,queue_time_end,server_start_time,server_first_token_time,finish_time,server_latency,total_latency,ttft,queue_time_in_router,queue_time_in_server,pure_queue_time,"

// sample is a complete request of 1 s, sent at a stamp.
func sample(i int, sent int64) *load.Sample {
	return &load.Sample{Index: i, RequestID: fmt.Sprintf("r-%d", i), Intended: sent - 2000, Started: sent - 1000, Sent: sent,
		FirstByte: sent + 300e6, FirstContent: sent + 300e6, FirstToken: sent + 400e6, LastToken: sent + 990e6, LastByte: sent + 1e9,
		Status: 200, Tokens: 8, HasUsage: true, PromptTokens: 20, CompletionTokens: 8, FinishReason: "stop"}
}

// record is the line of a gateway's timeline for such a request, on a clock that
// shows skew more.
func record(boot string, i int, sent, skew int64) string {
	at := func(ms int64) int64 { return sent + skew + ms*1e6 }
	return fmt.Sprintf(`{"request_id":"r-%d","boot_id":%q,"stream":true,"outcome":"finished","arrival_time":%d,"received_time":%d,"tokenize_start_time":%d,"tokenize_end_time":%d,`+
		`"first_received_time":%d,"first_sent_time":%d,"first_flushed_time":%d,"finish_time":%d,"live_at_arrival":7,"live_at_first_token":0,"pending_at_arrival":2,"pending_at_first_token":3,"stages":{"engine":5},"attempts":[{"legs":[{"role":"full","engine":"dead","outcome":"unavailable"}]},`+
		`{"legs":[{"role":"prefill","engine":"p1"},{"role":"decode","engine":"e%d","to_server_time":%d,"acked_time":%d,"retracted":2,"server_created_time":%d,"queue_time_start":%d,"queue_time_end":%d,`+
		`"prefill_start_time":%d,"prefill_end_time":%d,"server_first_token_time":%d,"first_output_time":%d}]}]}`,
		i, boot, at(1), at(2), at(10), at(20), at(290), at(298), at(299), at(999), i%2, at(30), at(35), at(40), at(50), at(150), at(150), at(250), at(250), at(280))
}

// read reads a CSV back as a map for each row.
func read(t testing.TB, text string) (rows []map[string]string) {
	t.Helper()
	all, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all[1:] {
		m := map[string]string{}
		for k, v := range r {
			m[all[0][k]] = v
		}
		rows = append(rows, m)
	}
	return rows
}

// A pair's row has the points that it passed and the stages between them, as the timeline
// says them, and was sent when its first half was.
func TestPairRow(t *testing.T) {
	var b Book
	sent := trace.Now()
	b.Add(sample(0, sent))
	b.records, b.boot = map[string]*Record{}, "here"
	line := record("here", 0, sent, 0)
	line = strings.Replace(line, `"engine":"p1"`, fmt.Sprintf(`"engine":"p1","to_server_time":%d,"prefill_end_time":%d`, sent+25e6, sent+120e6), 1)
	line = strings.Replace(line, `"stages"`, fmt.Sprintf(`"pair":{"handed_time":%d,"met_time":%d,"transferred_time":%d,"bootstrap":5000000,"prefill":90000000,"handover":0},"stages"`, sent+25e6, sent+30e6, sent+140e6), 1)
	if err := b.take([]byte(line), nil); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := WriteCSV(&out, b.Rows()); err != nil {
		t.Fatal(err)
	}
	got := read(t, out.String())[0]
	ms := func(n int64) string { return fmt.Sprint(sent + n*1e6) }
	for name, want := range map[string]string{"engine": "e0", "prefill_engine": "p1", "to_server_time": ms(25), "queue_time_in_router": "24000000", "prefill_end_time": ms(120),
		"met_time": ms(30), "prefilled_time": "", "transferred_time": ms(140), "running_time": "",
		"prefill_duration": "90000000", "bootstrap_duration": "5000000", "transfer_duration": "", "waiting_to_running_duration": "", "decode_duration": "", "handover_duration": "0"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

// With a gateway the row's stamps are its and the engine's, of the attempt that
// won.
func TestJoinedRow(t *testing.T) {
	var b Book
	sent := trace.Now()
	b.Add(sample(0, sent))
	b.records, b.boot = map[string]*Record{}, "here"
	if err := b.take([]byte(record("here", 0, sent, 0)), nil); err != nil {
		t.Fatal(err)
	}
	rows := b.Rows()
	var out bytes.Buffer
	if err := WriteCSV(&out, rows); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), wanted) {
		t.Errorf("header %s", out.String())
	}
	got := read(t, out.String())[0]
	ms := func(n int64) string { return fmt.Sprint(sent + n*1e6) }
	for name, want := range map[string]string{
		"request_id": "r-0", "engine": "e0", "prefill_engine": "p1", "attempts": "2",
		"arrival_time": ms(1), "to_server_time": ms(30), "server_created_time": ms(40), "queue_time_start": ms(50), "queue_time_end": ms(150),
		"server_start_time": ms(150), "server_first_token_time": ms(250), "finish_time": ms(999),
		"server_latency": "969000000", "total_latency": "998000000", "ttft": "298000000", "queue_time_in_router": "29000000",
		"queue_time_in_server": "120000000", "pure_queue_time": "100000000", "schedule_overhead": "30000000", "tokenize_duration": "10000000",
		"prefill_duration": "100000000", "output_path_delay": "19000000", "output_hop": "10000000", "output_delay": "8000000", "first_flushed_time": ms(299),
		"received_time": ms(2), "tokenize_start_time": ms(10), "tokenize_end_time": ms(20), "acked_time": ms(35), "retracted": "2",
		"live_at_arrival": "7", "live_at_first_token": "0", "pending_at_arrival": "2", "pending_at_first_token": "3",
		"outcome": "complete", "status": "200", "prompt_tokens": "20", "completion_tokens": "8", "client_ttft_sent": "300000000",
		"client_ttft": "300002000", "client_ttft_answer": "400002000", "client_e2e": "1000002000", "error": "", "client_tpot": fmt.Sprint(690_000_000 / 7),
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
}

// Without a gateway the client is where it would be, and what nobody stamped
// stays empty.
func TestRowAlone(t *testing.T) {
	var b Book
	sent := trace.Now()
	s := sample(0, sent)
	b.Add(s)
	refused := &load.Sample{Index: 1, Intended: sent, Started: sent, LastByte: sent + 5, Outcome: load.Errored, Kind: load.KindConnect, Detail: "refused, \"so\"\n"}
	b.Add(refused)
	native := sample(2, sent)
	seconds := func(ms int64) float64 { return float64(trace.Wall(sent+ms*1e6).UnixNano()) / 1e9 }
	native.Server = load.ServerTimes{Received: seconds(5), ForwardEntry: seconds(105), QueueTime: 0.08, PrefillFinished: seconds(200), ResponseSent: seconds(210)}
	b.Add(native)
	var out, lines bytes.Buffer
	rows := b.Rows()
	if err := WriteCSV(&out, rows); err != nil {
		t.Fatal(err)
	}
	got := read(t, out.String())
	if x := got[0]; x["arrival_time"] != fmt.Sprint(sent) || x["to_server_time"] != fmt.Sprint(sent) || x["ttft"] != "300000000" || x["server_latency"] != "1000000000" ||
		x["attempts"] != "1" || x["queue_time_in_router"] != "0" || x["server_created_time"] != "" || x["pure_queue_time"] != "" || x["engine"] != "" {
		t.Errorf("%v", x)
	}
	if x := got[1]; x["outcome"] != "errored" || x["error"] != "connect" || x["error_detail"] != refused.Detail || x["attempts"] != "0" || x["to_server_time"] != "" || x["ttft"] != "" || x["prompt_tokens"] != "" {
		t.Errorf("%v", x)
	}
	near := func(x map[string]string, name string, ms int64) {
		t.Helper()
		var v int64
		if _, err := fmt.Sscan(x[name], &v); err != nil || math.Abs(float64(v-sent-ms*1e6)) > 2000 { // a float's digits of today's seconds
			t.Errorf("%s is %q, want %d", name, x[name], sent+ms*1e6)
		}
	}
	near(got[2], "server_created_time", 5)
	near(got[2], "queue_time_start", 25)
	near(got[2], "queue_time_end", 105)
	near(got[2], "prefill_end_time", 200)
	near(got[2], "first_output_time", 210)

	if err := WriteJSONL(&lines, rows); err != nil {
		t.Fatal(err)
	}
	for i, text := range strings.Split(strings.TrimSpace(lines.String()), "\n") {
		var x map[string]any
		if err := json.Unmarshal([]byte(text), &x); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		for name, v := range got[i] {
			if have, ok := x[name]; ok != (v != "") || ok && fmt.Sprint(have) != v && fmt.Sprintf("%.0f", have) != v {
				t.Errorf("line %d: %s is %v, the CSV has %q", i, name, have, v)
			}
		}
	}
}

// For any other clock, stamps brought onto the client's lie between the sending and the answer of
// their own request, within the uncertainty.
func TestClock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		skew := rapid.Int64Range(-1e15, 1e15).Draw(t, "skew")
		rows := make([]Row, rapid.IntRange(1, 20).Draw(t, "n"))
		truth := make([]int64, len(rows))
		for i := range rows {
			sent := int64(1e18) + int64(i)*1e9
			there, back := rapid.Int64Range(0, 1e7).Draw(t, "there"), rapid.Int64Range(0, 1e7).Draw(t, "back")
			truth[i] = sent + there
			rows[i].Sample = *sample(i, sent)
			rows[i].FirstContent = truth[i] + 1e8 + back
			rows[i].Gateway = &Record{Arrival: truth[i] + skew, FirstReceived: truth[i] + 1e8 + skew}
		}
		o := settle(rows).Gateway
		if o.Contradicted {
			t.Fatal("contradicted")
		}
		for i := range rows {
			got := o.apply(rows[i].Gateway.Arrival)
			if o.Add != 0 && (got < rows[i].Sent || o.apply(rows[i].Gateway.FirstReceived) > rows[i].FirstContent) {
				t.Fatalf("%d of %d: %d, sent at %d", i, len(rows), got, rows[i].Sent)
			}
			if off := got - truth[i]; o.Add != 0 && max(off, -off) > o.Uncertain+1 {
				t.Fatalf("off by %d, said to be within %d", off, o.Uncertain)
			}
		}
	})
	// The clock of one boot is the same clock, whatever the network did.
	rows := []Row{{Sample: *sample(0, 1e18), Gateway: &Record{Arrival: 1e18 - 50, FirstReceived: 1e18 + 100, sameClock: true}}}
	if c := settle(rows); c.Gateway != (Offset{}) {
		t.Errorf("%+v", c)
	}
	set := []Row{{Sample: *sample(0, 1e18), Gateway: &Record{Arrival: 5e17, FirstReceived: 5e17 + 1}}, {Sample: *sample(1, 1e18), Gateway: &Record{Arrival: 6e17, FirstReceived: 6e17 + 1}}}
	if c := settle(set); !c.Gateway.Contradicted {
		t.Errorf("a clock that was set: %+v", c)
	}
}

// A timeline is joined while it is written, and what is missing is counted.
func TestFollow(t *testing.T) {
	lines := make(chan string)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/jsonl")
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case line, ok := <-lines:
				if !ok {
					return
				}
				fmt.Fprintln(w, line)
				_ = rc.Flush()
			}
		}
	}))
	defer server.Close()
	sent := trace.Now()
	var b Book
	f, err := b.Follow(t.Context(), server.URL+"/")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		lines <- record(trace.BootID(), i, sent, 0)
		b.Add(sample(i, sent))
	}
	for b.missing() > 0 {
		time.Sleep(time.Millisecond)
	}
	if missing, err := f.Close(); missing != 0 || err != nil {
		t.Errorf("%d missing, %v", missing, err)
	}
	rows := b.Rows()
	r := New(&load.Report{}, rows, Joined{})
	if len(r.Engines) != 2 || r.Engines[0].Name != "e0" || r.Engines[0].Requests != 10 || r.Engines[0].Share != 0.5 || *r.Engines[0].SuccessRate != 1 {
		t.Errorf("%+v", r.Engines)
	}
	// A failed request is in the share and not in the success.
	rows[0].Outcome, rows[2].Outcome = load.Errored, load.Unfinished
	if e := engines(rows)[0]; e.Requests != 10 || e.Complete != 8 || math.Abs(*e.SuccessRate-8.0/9) > 1e-12 {
		t.Errorf("%+v, rate %v", e, *e.SuccessRate)
	}

}

// A timeline that leaves records out, that is not one or that breaks off is an
// error, and a record that never comes is waited for a second.
func TestFollowErrors(t *testing.T) {
	for _, c := range []struct {
		name, timeline string
		ends           bool
		missing        int
		says           string
		after          time.Duration
	}{
		{"dropped", `{"dropped":7}` + "\n" + record(trace.BootID(), 0, 1, 0) + "\n", false, 19, "7 records", settleTime},
		{"garbage", "{garbage\n", false, 20, "garbage", 0},
		{"closed", "", true, 20, "closed it", 0},
		{"all is well", record(trace.BootID(), 0, 1, 0) + "\n", false, 19, "", settleTime},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var b Book
				for i := range 20 {
					b.Add(sample(i, 1))
				}
				ctx, cancel := context.WithCancel(t.Context())
				timeline, gateway := io.Pipe()
				context.AfterFunc(ctx, func() { timeline.CloseWithError(ctx.Err()) })
				f := b.follow(ctx, cancel, timeline)
				if _, err := io.WriteString(gateway, c.timeline); err != nil {
					t.Error(err)
				}
				if c.ends {
					gateway.Close()
				}
				synctest.Wait()
				began := time.Now()
				missing, err := f.Close()
				if missing != c.missing || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
					t.Errorf("%d missing, %v", missing, err)
				}
				if took := time.Since(began); took < c.after || took > c.after+10*time.Millisecond {
					t.Errorf("it waited %v, want %v", took, c.after)
				}
			})
		})
	}
}

func TestFollowRefused(t *testing.T) {
	var b Book
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer other.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, url := range []string{other.URL, gone.URL, "http://\x7f"} {
		if _, err := b.Follow(t.Context(), url); err == nil {
			t.Errorf("%s was taken as a timeline", url)
		}
	}
}

type full struct{ left int }

func (f *full) Write(p []byte) (int, error) {
	if f.left -= len(p); f.left < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

// A full disk is an error in every form.
func TestFullDisk(t *testing.T) {
	var b Book
	for i := range 200 {
		b.Add(sample(i, 1e18))
	}
	rows := b.Rows()
	if !slices.IsSortedFunc(rows, func(a, b Row) int { return a.Index - b.Index }) {
		t.Error("rows are not in order")
	}
	r := New(&load.Report{}, rows, Joined{From: "x", Problem: "y"})
	for name, write := range map[string]func(io.Writer) error{
		"csv": func(w io.Writer) error { return WriteCSV(w, rows) }, "jsonl": func(w io.Writer) error { return WriteJSONL(w, rows) },
		"json": r.JSON, "text": r.Text,
	} {
		if err := write(&full{left: 1 << 30}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, left := range []int{0, 100} {
			if write(&full{left: left}) == nil {
				t.Errorf("%s: a disk with %d bytes left held it", name, left)
			}
		}
	}
}

// A line of a timeline, whatever it says, is booked or an error, and the row that it
// joins can be written.
func FuzzTimeline(f *testing.F) {
	sent := trace.Now()
	f.Add([]byte(record("here", 0, sent, 0)))
	f.Add([]byte(record("there", 0, sent, 5)))
	f.Add([]byte(`{"dropped":3}`))
	f.Add([]byte(`{"request_id":"` + sample(0, sent).RequestID + `","stages":{"":-1,"queue":9223372036854775807},"attempts":[{"legs":[]},{"legs":[{"role":"prefill"},{}]}]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var b Book
		b.Add(sample(0, sent))
		b.records, b.boot = map[string]*Record{}, "here"
		if b.take(line, nil) != nil {
			return
		}
		rows := b.Rows()
		if err := errors.Join(WriteCSV(io.Discard, rows), WriteJSONL(io.Discard, rows)); err != nil {
			t.Fatal(err)
		}
	})
}
