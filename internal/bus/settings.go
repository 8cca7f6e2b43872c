package bus

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
)

// SettingError is a flag, variable or nats context that no connection can be
// made with, whatever the server. Its text names it and shows no secret.
type SettingError struct{ text string }

func (e *SettingError) Error() string { return e.text }

func badSetting(format string, args ...any) error {
	return &SettingError{text: fmt.Sprintf(format, args...)}
}

// check finds settings that the client library would only meet when it
// connects, and then tell as a server that does not answer.
func (o ConnectOptions) check(settings *natscontext.Context, opts []nats.Option) error {
	servers := strings.Split(settings.ServerURL(), ",")
	for i, server := range servers {
		if fault := serverFault(strings.TrimSpace(server)); fault != "" {
			return badSetting("%s %s", o.place(i, len(servers)), fault)
		}
	}
	if (settings.Certificate() == "") != (settings.Key() == "") {
		return badSetting("--tlscert and --tlskey belong together; give both")
	}
	var probe nats.Options
	for _, opt := range opts {
		err := opt(&probe)
		if err != nil && probe.TLSConfig == nil { // those of TLS make one first
			return o.badCredentials(settings, err)
		}
		if err != nil {
			return badSetting("--tlscert, --tlskey or --tlsca can't be used: %s", reason(err))
		}
	}
	var err error
	if probe.UserJWT != nil {
		_, err = probe.UserJWT()
	}
	if err == nil && probe.SignatureCB != nil {
		_, err = probe.SignatureCB([]byte("probe"))
	}
	if err != nil {
		return o.badCredentials(settings, err)
	}
	return nil
}

// badCredentials names the credentials that are used, by their flag.
func (o ConnectOptions) badCredentials(settings *natscontext.Context, err error) error {
	what := "a flag of the connection"
	switch {
	case settings.User() != "":
		what = "--user and --password"
	case settings.Creds() != "":
		what = credentialFile("creds", o.Creds, settings.Creds())
	case settings.NKey() != "":
		what = credentialFile("nkey", o.NKey, settings.NKey())
	case settings.UserJWT() != "":
		what = "--jwt and --seed"
	}
	return badSetting("%s can't be used: %s", what, reason(err))
}

// credentialFile names a file by the flag that gave it, or else by the context.
func credentialFile(flag, given, used string) string {
	if given == "" {
		return fmt.Sprintf("the file %q, %s of the nats context,", used, flag)
	}
	return fmt.Sprintf("--%s %q", flag, used)
}

func reason(err error) string { return strings.TrimPrefix(err.Error(), "nats: ") }

var schemes = []string{"nats", "tls", "ws", "wss"}

// place names an address by where it was given, never by its text: of one that
// is no URL nobody knows which part is a password.
func (o ConnectOptions) place(i, n int) string {
	given := "--server, SANDBOX_SERVER or NATS_URL"
	if o.Server == "" {
		given = "the nats context"
	}
	if n == 1 {
		return "the address in " + given
	}
	return fmt.Sprintf("address %d of %d in %s", i+1, n, given)
}

// serverFault tells what is wrong with an address, "" if nothing is.
func serverFault(server string) string {
	if server == "" {
		return ""
	}
	full := server
	if !strings.Contains(full, "://") {
		full = "nats://" + full
	}
	u, err := url.Parse(full) // its error has the whole URL
	if err == nil && u.Port() != "" {
		_, err = strconv.ParseUint(u.Port(), 10, 16)
	}
	switch {
	case err != nil || u.Hostname() == "":
		return "is not a URL like nats://host:4222; a password in it has %2C for a comma and %2F for a slash"
	case !slices.Contains(schemes, u.Scheme):
		return "does not begin with " + strings.Join(schemes, "://, ") + "://, as nats://host:4222 does"
	}
	return ""
}
