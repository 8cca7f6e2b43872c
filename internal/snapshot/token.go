package snapshot

import (
	"fmt"
	"strings"
)

const upperHex = "0123456789ABCDEF"

// EscapeToken writes s as one NATS subject token: bytes outside A-Za-z0-9_-
// become =XX. Different strings have different tokens.
func EscapeToken(s string) string {
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; isTokenByte(c) {
			b.WriteByte(c)
		} else {
			b.Write([]byte{'=', upperHex[c>>4], upperHex[c&15]})
		}
	}
	return b.String()
}

func isTokenByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}

// UnescapeToken is the inverse of EscapeToken; it takes nothing else.
func UnescapeToken(token string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		c := token[i]
		if c != '=' {
			b.WriteByte(c)
			continue
		}
		if i+2 >= len(token) {
			return "", fmt.Errorf("token %q ends inside an escape", token)
		}
		hi, lo := strings.IndexByte(upperHex, token[i+1]), strings.IndexByte(upperHex, token[i+2])
		if hi < 0 || lo < 0 {
			return "", fmt.Errorf("token %q has an escape that is not =XX", token)
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	if EscapeToken(b.String()) != token {
		return "", fmt.Errorf("token %q is not an escaped name", token)
	}
	return b.String(), nil
}
