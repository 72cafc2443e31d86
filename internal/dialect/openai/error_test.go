package openai

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/internal/infer"
)

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		err    infer.Error
		status int
		want   string
	}{
		{infer.Error{Code: infer.CodeInternal}, 500, `"type":"server_error","param":null,"code":"internal_error"`},
		{infer.Error{Code: infer.CodeInvalid}, 400, `"type":"invalid_request_error","param":null,"code":null`},
		{infer.Error{Code: infer.CodeInvalid, Param: `a"b`}, 400, `"type":"invalid_request_error","param":"a\"b","code":"invalid_value"`},
		{infer.Error{Code: infer.CodeUnsupported, Param: "tools"}, 400, `"type":"invalid_request_error","param":"tools","code":"unsupported_parameter"`},
		{infer.Error{Code: infer.CodeNotFound, Param: "model"}, 404, `"type":"invalid_request_error","param":"model","code":"model_not_found"`},
		{infer.Error{Code: infer.CodeNotFound}, 404, `"type":"invalid_request_error","param":null,"code":"unknown_url"`},
		{infer.Error{Code: infer.CodeMethod}, 405, `"type":"invalid_request_error","param":null,"code":"method_not_supported"`},
		{infer.Error{Code: infer.CodeTooLarge}, 413, `"type":"invalid_request_error","param":null,"code":"request_too_large"`},
		{infer.Error{Code: infer.CodeBodyTimeout}, 408, `"type":"invalid_request_error","param":null,"code":"request_timeout"`},
		{infer.Error{Code: infer.CodeMediaType}, 415, `"type":"invalid_request_error","param":null,"code":"unsupported_content_type"`},
		{infer.Error{Code: infer.CodeContext, Param: "messages"}, 400, `"type":"invalid_request_error","param":"messages","code":"context_length_exceeded"`},
		{infer.Error{Code: infer.CodeUnauthorized}, 401, `"type":"invalid_request_error","param":null,"code":"invalid_api_key"`},
		{infer.Error{Code: infer.CodeOverloaded}, 429, `"type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"`},
		{infer.Error{Code: infer.CodeDeadline}, 503, `"type":"server_error","param":null,"code":"deadline_exceeded"`},
		{infer.Error{Code: infer.CodeDeadline, Engine: "e1"}, 504, `"type":"server_error","param":null,"code":"deadline_exceeded"`},
		{infer.Error{Code: infer.CodeUnavailable}, 503, `"type":"server_error","param":null,"code":"service_unavailable"`},
		{infer.Error{Code: infer.CodeEngine, Engine: "e1"}, 502, `"type":"server_error","param":null,"code":"engine_error"`},
		{infer.Error{Code: infer.CodeIntegrity}, 502, `"type":"server_error","param":null,"code":"integrity_error"`},
		{infer.Error{Code: infer.CodeSlowClient}, 499, `"type":"invalid_request_error","param":null,"code":"slow_client"`},
		{infer.Error{Code: infer.CodeCancelled}, 499, `"type":"invalid_request_error","param":null,"code":"request_cancelled"`},
	} {
		e := test.err
		e.Message = "line\n\"two\" \xff"
		if got := Chat.Status(&e); got != test.status {
			t.Errorf("%v: status %d, want %d", e.Code, got, test.status)
		}
		want := `{"error":{"message":"line\n\"two\" ` + "\uFFFD" + `",` + test.want + `}}`
		if diff := cmp.Diff(want, string(AppendError(nil, &e))); diff != "" {
			t.Errorf("%v: %s", e.Code, diff)
		}
		if diff := cmp.Diff([]string{want}, dataOf(t, Chat.AppendErrorEvent(nil, &e))); diff != "" || !json.Valid([]byte(want)) {
			t.Errorf("%v: event %s", e.Code, diff)
		}
	}
}

// TestEveryCodeHasAClass finds a code that was added and not mapped.
func TestEveryCodeHasAClass(t *testing.T) {
	fallback := ClassOf(&infer.Error{Code: infer.CodeInternal})
	n := 0
	for code := infer.CodeInternal + 1; code.String() != "unknown"; code++ {
		if got := ClassOf(&infer.Error{Code: code}); got == fallback {
			t.Errorf("%v is taken for an internal error", code)
		}
		n++
	}
	if n < 15 {
		t.Errorf("only %d codes", n)
	}
}
