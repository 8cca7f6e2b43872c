package bus

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"sandkeep/internal/snapshot"
)

// ConnectOptions are the connection flags, spelled as those of the `nats`
// command. What a flag or variable does not say, the context says; then the
// defaults. Credentials of a flag replace all credentials of the context.
type ConnectOptions struct {
	Server      string        `name:"server" short:"s" env:"SANDBOX_SERVER,NATS_URL" placeholder:"URL" help:"NATS server URLs, separated by commas"`
	Context     string        `name:"context" env:"SANDBOX_CONTEXT,NATS_CONTEXT" placeholder:"NAME" help:"saved nats context to connect with"`
	NoContext   bool          `name:"no-context" env:"SANDBOX_NO_CONTEXT" help:"do not use the selected nats context"`
	Creds       string        `name:"creds" env:"SANDBOX_CREDS,NATS_CREDS" placeholder:"FILE" help:"file with user credentials"`
	NKey        string        `name:"nkey" env:"SANDBOX_NKEY,NATS_NKEY" placeholder:"FILE" help:"file with the user NKey"`
	JWT         string        `name:"jwt" env:"SANDBOX_JWT,NATS_JWT" placeholder:"JWT" help:"user JWT"`
	Seed        string        `name:"seed" env:"SANDBOX_SEED,NATS_SEED" placeholder:"SEED" help:"user seed, with --jwt"`
	User        string        `name:"user" env:"SANDBOX_USER,NATS_USER" placeholder:"USER" help:"user name, or a token without --password"`
	Password    string        `name:"password" env:"SANDBOX_PASSWORD,NATS_PASSWORD" placeholder:"PASSWORD" help:"password"`
	Token       string        `name:"token" env:"SANDBOX_TOKEN,NATS_TOKEN" placeholder:"TOKEN" help:"authorization token"`
	TLSCert     string        `name:"tlscert" env:"SANDBOX_TLSCERT,NATS_CERT" placeholder:"FILE" help:"TLS public certificate"`
	TLSKey      string        `name:"tlskey" env:"SANDBOX_TLSKEY,NATS_KEY" placeholder:"FILE" help:"TLS private key"`
	TLSCA       string        `name:"tlsca" env:"SANDBOX_TLSCA,NATS_CA" placeholder:"FILE" help:"TLS certificate authority chain"`
	TLSFirst    bool          `name:"tlsfirst" env:"SANDBOX_TLSFIRST" help:"TLS handshake before the server INFO"`
	Timeout     time.Duration `name:"timeout" env:"SANDBOX_TIMEOUT,NATS_TIMEOUT" default:"5s" help:"time to wait for a connection"`
	Name        string        `name:"connection-name" env:"SANDBOX_CONNECTION_NAME" placeholder:"NAME" help:"name of the connection"`
	InboxPrefix string        `name:"inbox-prefix" env:"SANDBOX_INBOX_PREFIX" placeholder:"PREFIX" help:"prefix of reply subjects"`
	JSDomain    string        `name:"js-domain" env:"SANDBOX_JS_DOMAIN" placeholder:"DOMAIN" help:"JetStream domain"`
	JSAPIPrefix string        `name:"js-api-prefix" env:"SANDBOX_JS_API_PREFIX" placeholder:"PREFIX" help:"JetStream API prefix"`
	SocksProxy  string        `name:"socks-proxy" env:"SANDBOX_SOCKS_PROXY,NATS_SOCKS_PROXY" placeholder:"URL" help:"SOCKS5 proxy"`

	// TokenFile holds the token of a server on this machine. It is used when
	// nothing else says who connects, and never shown to another machine.
	TokenFile string `kong:"-"`
	// Embedded is a server in this process to connect to.
	Embedded *Server `kong:"-"`
	// Daemon connects for good: it waits for a server that is not up yet and
	// reconnects for ever.
	Daemon bool           `kong:"-"`
	Log    zerolog.Logger `kong:"-"`
}

// String names the servers and hides all credentials.
func (o ConnectOptions) String() string   { return "connection to " + plainURLs(o.Server) }
func (o ConnectOptions) GoString() string { return o.String() }

// plainURLs takes user information out of a list of URLs. What stands before an
// address with a user but no scheme may be the beginning of a password with a
// comma, so it is left out.
func plainURLs(servers string) string {
	var plain []string
	secret := false
	for _, u := range slices.Backward(strings.Split(cmp.Or(servers, nats.DefaultURL), ",")) {
		scheme, _, found := strings.Cut(u, "://")
		at := strings.LastIndexByte(u, '@')
		switch {
		case secret:
			secret = !found
			continue
		case at >= 0 && found:
			u = scheme + "://" + u[at+1:]
		case at >= 0:
			u, secret = u[at+1:], true
		}
		plain = append(plain, u)
	}
	slices.Reverse(plain)
	return strings.Join(plain, ",")
}

func (o ConnectOptions) hasCredentials() bool {
	return cmp.Or(o.Creds, o.NKey, o.JWT, o.Seed, o.User, o.Password, o.Token) != ""
}

// resolve is the whole setting: flags over context.
func (o ConnectOptions) resolve() (*natscontext.Context, error) {
	with := []natscontext.Option{}
	if o.Embedded == nil && !o.NoContext {
		saved, err := natscontext.New(o.Context, true)
		if err != nil {
			return nil, badSetting("the nats context %q could not be loaded; `nats context ls` lists them", o.Context)
		}
		with = o.inherit(saved)
	}
	if o.User != "" && o.Password == "" {
		o.User, o.Token = "", cmp.Or(o.Token, o.User)
	}
	with = append(with, natscontext.WithServerURL(o.Server), natscontext.WithCreds(o.Creds), natscontext.WithNKey(o.NKey),
		natscontext.WithUserJWT(o.JWT), natscontext.WithUserSeed(o.Seed), natscontext.WithUser(o.User), natscontext.WithPassword(o.Password),
		natscontext.WithToken(o.Token), natscontext.WithCertificate(o.TLSCert), natscontext.WithKey(o.TLSKey), natscontext.WithCA(o.TLSCA),
		natscontext.WithInboxPrefix(o.InboxPrefix), natscontext.WithJSDomain(o.JSDomain), natscontext.WithJSAPIPrefix(o.JSAPIPrefix),
		natscontext.WithSocksProxy(o.SocksProxy))
	if o.TLSFirst {
		with = append(with, natscontext.WithTLSHandshakeFirst())
	}
	return natscontext.New("", false, with...)
}

// inherit takes over what a saved context says.
func (o ConnectOptions) inherit(saved *natscontext.Context) []natscontext.Option {
	with := []natscontext.Option{natscontext.WithServerURL(saved.ServerURL()), natscontext.WithCertificate(saved.Certificate()),
		natscontext.WithKey(saved.Key()), natscontext.WithCA(saved.CA()), natscontext.WithInboxPrefix(saved.InboxPrefix()),
		natscontext.WithJSDomain(saved.JSDomain()), natscontext.WithJSAPIPrefix(saved.JSAPIPrefix()), natscontext.WithSocksProxy(saved.SocksProxy())}
	if saved.TLSHandshakeFirst() {
		with = append(with, natscontext.WithTLSHandshakeFirst())
	}
	if o.hasCredentials() {
		return with
	}
	return append(with, natscontext.WithCreds(saved.Creds()), natscontext.WithNKey(saved.NKey()), natscontext.WithUserJWT(saved.UserJWT()),
		natscontext.WithUserSeed(saved.UserSeed()), natscontext.WithUser(saved.User()), natscontext.WithPassword(saved.Password()), natscontext.WithToken(saved.Token()))
}

// Connect connects as the options say. Options that can't be used are a
// *SettingError.
func Connect(o ConnectOptions) (*nats.Conn, error) {
	settings, err := o.resolve()
	if err != nil {
		return nil, err
	}
	servers := settings.ServerURL()
	opts, err := settings.NATSOptions(o.natsOptions(settings)...)
	if err != nil {
		return nil, o.badCredentials(settings, err)
	}
	if err := o.check(settings, opts); err != nil {
		return nil, err
	}
	nc, err := nats.Connect(servers, opts...)
	switch {
	case err == nil:
		return nc, nil
	case errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired):
		return nil, Refused(plainURLs(servers), err)
	}
	return nil, snapshot.Errorf(snapshot.StoreUnavailable, "no NATS server answers at %s; start one with nats-embedded, or give --server or --context", plainURLs(servers)).Because(err)
}

// Refused is the error of a server that does not take the credentials.
func Refused(servers string, cause error) error {
	return snapshot.Errorf(snapshot.StoreUnavailable, "the NATS server at %s refuses the credentials; give --creds, --token or another --context", servers).Because(cause)
}

func (o ConnectOptions) natsOptions(settings *natscontext.Context) []nats.Option {
	opts := []nats.Option{nats.Name(cmp.Or(o.Name, "sandkeep")), nats.Timeout(cmp.Or(o.Timeout, 5*time.Second)),
		nats.ReconnectWait(500 * time.Millisecond), nats.ReconnectJitter(500*time.Millisecond, 2*time.Second)}
	if o.Embedded != nil {
		opts = append(opts, nats.InProcessServer(o.Embedded.server))
	}
	if o.TokenFile != "" && anonymous(settings) && (o.Embedded != nil || allLocal(settings.ServerURL())) {
		opts = append(opts, nats.IgnoreDiscoveredServers(), nats.TokenHandler(func() string {
			token, _ := os.ReadFile(o.TokenFile) // without it the server says what is missing
			return strings.TrimSpace(string(token))
		}))
	}
	if !o.Daemon {
		return opts
	}
	return append(opts, nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true),
		nats.DisconnectErrHandler(func(nc *nats.Conn, err error) {
			if !nc.IsClosed() {
				o.Log.Warn().Err(err).Msg("disconnected")
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			o.Log.Info().Str("server", nc.ConnectedUrlRedacted()).Msg("connected again")
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			line := o.Log.Error().Err(err)
			if sub != nil {
				line = line.Str("subject", sub.Subject)
			}
			line.Msg("connection fault")
		}))
}

func anonymous(c *natscontext.Context) bool {
	return cmp.Or(c.User(), c.Creds(), c.NKey(), c.UserJWT(), c.Token()) == "" && !strings.Contains(c.ServerURL(), "@")
}

// allLocal tells whether every server of the list is this machine.
func allLocal(servers string) bool {
	for s := range strings.SplitSeq(servers, ",") {
		if s = strings.TrimSpace(s); !strings.Contains(s, "://") {
			s = "nats://" + s
		}
		u, err := url.Parse(s)
		if err != nil {
			return false
		}
		ip := net.ParseIP(u.Hostname())
		if u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

// JetStream is the JetStream of the options' domain or API prefix.
func JetStream(nc *nats.Conn, o ConnectOptions) (jetstream.JetStream, error) {
	settings, err := o.resolve()
	if err != nil {
		return nil, err
	}
	var js jetstream.JetStream
	switch {
	case settings.JSAPIPrefix() != "":
		js, err = jetstream.NewWithAPIPrefix(nc, settings.JSAPIPrefix())
	case settings.JSDomain() != "":
		js, err = jetstream.NewWithDomain(nc, settings.JSDomain())
	default:
		js, err = jetstream.New(nc)
	}
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	return js, nil
}
