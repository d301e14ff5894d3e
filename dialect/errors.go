package dialect

import (
	"net/http"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// ErrorBody is an error in the client's own format, as the server it thinks it
// talks to would send it. The status is the one the answer will have; code is
// the gateway's reason (X-Switchyard-Reason), which only OpenAI's format has
// room for. What is not valid UTF-8 in the texts is replaced.
func ErrorBody(f Format, status int, code, message, param string) (contentType string, body []byte) {
	const plainJSON, withCharset = "application/json", "application/json; charset=utf-8"
	switch f {
	case Anthropic:
		return plainJSON, anthropicError(nil, status, message)
	case Ollama:
		return withCharset, ollamaError(nil, message)
	case LlamaCpp:
		return withCharset, llamaCppError(nil, status, message)
	default:
		return plainJSON, openAIError(nil, status, code, message, param)
	}
}

// ErrorEvent is the event that ends a stream which broke, in the client's own
// format, framing included.
func ErrorEvent(f Format, code, message string) []byte {
	status := http.StatusBadGateway
	switch code {
	case "upstream_timeout":
		status = http.StatusGatewayTimeout
	case "draining":
		status = http.StatusServiceUnavailable
	}
	switch f {
	case Anthropic:
		b := append([]byte(nil), "event: error\ndata: "...)
		return append(anthropicError(b, status, message), "\n\n"...)
	case Responses:
		b := append([]byte(nil), `event: error`+"\n"+`data: {"type":"error","code":`...)
		b = quote(b, code)
		b = append(b, `,"message":`...)
		b = quote(b, message)
		// The sequence is the replica's, and strict clients need a number.
		return append(b, `,"param":null,"sequence_number":0}`+"\n\n"...)
	case Ollama:
		return append(ollamaError(nil, message), '\n')
	case LlamaCpp:
		b := append([]byte(nil), "data: "...)
		return append(llamaCppError(b, status, message), "\n\n"...)
	default:
		b := append([]byte(nil), "data: "...)
		return append(openAIError(b, status, code, message, ""), "\n\n"...)
	}
}

func openAIError(b []byte, status int, code, message, param string) []byte {
	b = append(b, `{"error":{"message":`...)
	b = quote(b, message)
	b = append(b, `,"type":`...)
	b = quote(b, openAIType(status))
	b = append(b, `,"param":`...)
	b = quoteOrNull(b, param)
	b = append(b, `,"code":`...)
	b = quoteOrNull(b, code)
	return append(b, "}}"...)
}

func anthropicError(b []byte, status int, message string) []byte {
	b = append(b, `{"type":"error","error":{"type":`...)
	b = quote(b, anthropicType(status))
	b = append(b, `,"message":`...)
	b = quote(b, message)
	return append(b, "}}"...)
}

func ollamaError(b []byte, message string) []byte {
	b = append(b, `{"error":`...)
	b = quote(b, message)
	return append(b, '}')
}

func llamaCppError(b []byte, status int, message string) []byte {
	b = append(b, `{"error":{"code":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, `,"message":`...)
	b = quote(b, message)
	b = append(b, `,"type":`...)
	b = quote(b, llamaCppType(status))
	return append(b, "}}"...)
}

func openAIType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	}
	if status >= 500 {
		return "server_error"
	}
	return "invalid_request_error"
}

func anthropicType(status int) string {
	switch status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, 529:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

func llamaCppType(status int) string {
	switch status {
	case http.StatusNotImplemented:
		return "not_supported_error"
	case http.StatusServiceUnavailable:
		return "unavailable_error"
	default:
		return openAIType(status)
	}
}

func quote(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

func quoteOrNull(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return quote(b, s)
}
