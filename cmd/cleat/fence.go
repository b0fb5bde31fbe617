package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/internal/cli"
)

func newFenceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "fence",
		Short: "Fence clients of storage by their addresses, and unfence them",
		Long: `Fences clients of storage by their addresses (fence add) and unfences them (fence
rm). The workload of a failed or unreachable node, which may still write, can start
elsewhere only after the storage refuses that node.

A fence is complete when the command ends with 0: the client has no session, none of
its requests is accepted, also not later, and it gets no new session. Until then it
can be there in part: repeat the command. It ends only by fence rm, when the client
was restarted or is off: until then it can hold old data that it would write.

The commands speak CSI-Addons: to cleat fence serve, cleat csi --addons-endpoint, or
another driver (--endpoint).`,
		Example: `  cleat fence add 192.0.2.7 2001:db8::7
  cleat fence list
  cleat fence rm 192.0.2.7 2001:db8::7
  cleat fence add 192.0.2.0/24 --endpoint unix:///csi/csi-addons.sock -p clusterID=a --secret userKey=/etc/key`,
	}
	c.AddCommand(
		newFenceServeCommand(), newFenceAddCommand(), newFenceRemoveCommand(),
		newFenceListCommand(), newFenceClientsCommand(), newFenceDriverCommand(),
	)
	onlyHolds(c)
	return c
}

// fenceAsk has the flags of the commands that ask a fence service.
type fenceAsk struct {
	session
	target     client.Target
	parameters keyValues
	secrets    []string // KEY=FILE
}

// addTo adds the flags to one command, not to the group: fence serve is in it.
func (f *fenceAsk) addTo(c *cobra.Command) {
	f.target.Patience = 200 * time.Millisecond
	f.add(c.Flags(), func(e *pflag.FlagSet) {
		e.StringVar(&f.target.Endpoint, "endpoint", defaultFenceEndpoint, "socket of the CSI-Addons service, any driver's; or HOST:PORT")
		e.StringVar(&f.target.TLS.Cert, "tls-cert", "", "certificate to show at HOST:PORT, a PEM file")
		e.StringVar(&f.target.TLS.Key, "tls-key", "", "its private key, a PEM file that not everybody may read")
		e.StringVar(&f.target.TLS.CA, "tls-ca", "", "authority that must have signed the server's certificate, a PEM file")
		e.StringVar(&f.target.ServerName, "tls-server-name", "", "name that the server's certificate is for, where that is not HOST")
		e.DurationVar(&f.timeout, "timeout", 3*time.Minute, "give up after this time; 0 is never. When it is not given, a service that is not there is given up after 3 s")
	})
}

// addRequestTo adds the flags that become part of a call.
func (f *fenceAsk) addRequestTo(c *cobra.Command) {
	addParameters(c, &f.parameters, "key=value; may be repeated. Together they are whose fence it is")
	c.Flags().StringArrayVar(&f.secrets, "secret", nil, "a secret that the driver wants, KEY=FILE; may be repeated. The file's last line end is left out")
}

// fenceService is a service that a command asks.
type fenceService struct {
	*client.Client
	request client.Request
	notice  func(string)
}

func (f *fenceAsk) dial(_ context.Context, notice func(string)) (s fenceService, err error) {
	if err := f.target.Check(); err != nil {
		return s, err
	}
	s = fenceService{request: client.Request{Parameters: f.parameters}, notice: notice}
	if s.request.Secrets, err = readSecrets(f.secrets); err != nil {
		return s, err
	}
	s.Client, err = client.Open(f.target)
	return s, err
}

// fenceCall asks a fence service.
type fenceCall func(ctx context.Context, s fenceService) (cli.View, any, error)

// ask makes a command of a call, and repeats it until its answer is final: calls of
// the contract can be repeated, and continue.
func (f *fenceAsk) ask(doing string, call fenceCall) func(*cobra.Command, []string) error {
	return askServer(&f.session, f.bind, f.dial, doing, func(ctx context.Context, s fenceService, _ []string) (view cli.View, document any, err error) {
		absent := 3 * time.Second
		if f.env.Changed("timeout") {
			absent = math.MaxInt64
		}
		again := func(err error, past time.Duration) bool { return fenceCanChange(err, past, absent) }
		err = retry(ctx, time.Second, s.notice, again, func(ctx context.Context) (err error) {
			view, document, err = call(ctx, s)
			return explainFence(err)
		})
		return view, document, err
	})
}

// fenceCanChange reports whether a repeat can have another result. A service
// that is absent is waited for, but not for ever.
func fenceCanChange(err error, past, absent time.Duration) bool {
	if errors.Is(err, client.ErrNobody) {
		return past < absent && !errors.Is(err, fs.ErrPermission)
	}
	kind := errs.KindOf(err)
	return kind == errs.Unavailable || kind == errs.Busy
}

// explainFence adds advice to an error.
func explainFence(err error) error {
	answer, answered := errors.AsType[*client.Error](err)
	switch {
	case !answered && errors.Is(err, client.ErrNobody):
		return advise(err, noServer(err, "cleat fence serve", "Start it, or name a driver's socket with --endpoint"))
	case !answered:
		return err
	case answer.Code == codes.Unimplemented && strings.Contains(answer.Message, "unknown service"):
		return advise(err, "no CSI-Addons is served there; a driver has a socket of its own for it, beside that of CSI")
	case answer.Code == codes.Unimplemented:
		return advise(err, "the driver does not serve that, or not in this mode; see what it announces with: cleat fence driver")
	case answer.Code == codes.InvalidArgument && strings.Contains(answer.Message, request.ForceParameter+"=true"):
		return advise(err, "--force does that")
	case answer.Code == codes.Unauthenticated:
		return advise(err, "give the secrets that it wants with --secret KEY=FILE")
	}
	return err
}

// readSecrets reads KEY=FILE, so that no secret is in an argument. No error has
// a value, nor the path: a user could have given the secret in its place.
func readSecrets(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		key, path, ok := strings.Cut(arg, "=")
		if !ok || key == "" || path == "" {
			return nil, errors.New("--secret takes KEY=FILE, as userKey=/etc/cleat/user.key: the name of the secret, and the file that holds its value")
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("--secret %s is given twice", key)
		}
		text, err := cli.ReadInput(nil, path, 64<<10)
		text = bytes.TrimRight(text, "\r\n")
		if err == nil && len(text) == 0 {
			err = errors.New("it is empty")
		}
		if err != nil {
			return nil, fmt.Errorf("--secret %s: its file cannot be read: %w", key, err)
		}
		out[key] = string(text)
	}
	return out, nil
}

// fencedBlock is an element of cleat fence list. The CIDR is as the driver wrote it.
type fencedBlock struct {
	CIDR string `json:"cidr"`
}

func newFenceListCommand() *cobra.Command {
	var f fenceAsk
	c := &cobra.Command{
		Use:   "list",
		Short: "List the fenced blocks (ListClusterFence)",
		Long: `Lists the fenced blocks, as the driver reports them: cleat's those that are
enforced now. With --parameter only those of these parameters. Sessions for which
a fence waits are listed on standard error, with the process that keeps them open.`,
		Example: `  cleat fence list
  cleat fence list -o json | jq -r '.[].cidr'`,
	}
	f.addTo(c)
	f.addRequestTo(c)
	c.RunE = f.ask("asking what is fenced", func(ctx context.Context, s fenceService) (cli.View, any, error) {
		blocks, ending, err := s.ListAll(ctx, s.request)
		if len(ending) > 0 {
			c.PrintErrf("Not fenced yet, and not listed:\n  %s\nEnd or restart such a process, or close the descriptor in it; the fence then goes on by itself (docs/fencing.md).\n", strings.Join(ending, "\n  "))
		}
		slices.SortFunc(blocks, byBlock)
		t, all := cli.Table{Header: []string{"CIDR"}}, []fencedBlock{}
		for _, block := range blocks {
			t.Add(block)
			all = append(all, fencedBlock{block})
		}
		return t, all, err
	})
	return c
}

// byBlock orders blocks; texts that are no blocks follow.
func byBlock(a, b string) int {
	x, errX := request.Block(a)
	y, errY := request.Block(b)
	switch {
	case errX == nil && errY == nil:
		return netip.Prefix.Compare(x, y)
	case errX == nil:
		return -1
	case errY == nil:
		return 1
	}
	return strings.Compare(a, b)
}

func newFenceClientsCommand() *cobra.Command {
	var f fenceAsk
	c := &cobra.Command{
		Use:   "clients",
		Short: "List the clients of the storage and their addresses (GetFenceClients)",
		Long: `Lists the clients of the storage that the driver knows, each with the addresses to
fence. A driver on a node lists its own node: ask there, before it fails.`,
		Example: `  cleat fence clients --endpoint unix:///run/cleat/addons/addons.sock
  cleat fence clients -o json | jq -r '.[].addresses[]'`,
	}
	f.addTo(c)
	f.addRequestTo(c)
	c.RunE = f.ask("asking for clients", func(ctx context.Context, s fenceService) (cli.View, any, error) {
		all, err := s.Clients(ctx, s.request)
		t := cli.Table{Header: []string{"CLIENT", "ADDRESSES"}}
		for _, one := range all {
			t.Add(one.ID, one.Addresses)
		}
		return t, all, err
	})
	return c
}

// fenceDriver is the document of cleat fence driver.
type fenceDriver struct {
	client.Identity
	Ready        bool                `json:"ready"`
	Capabilities client.Capabilities `json:"capabilities"`
}

func newFenceDriverCommand() *cobra.Command {
	var f fenceAsk
	c := &cobra.Command{
		Use:     "driver",
		Short:   "Show the driver's identity and capabilities",
		Example: `  cleat fence driver --endpoint unix:///csi/csi-addons.sock`,
	}
	f.addTo(c)
	c.RunE = f.ask("asking the driver", func(ctx context.Context, s fenceService) (_ cli.View, _ any, err error) {
		var d fenceDriver
		if d.Identity, err = s.Identity(ctx); err != nil {
			return nil, nil, err
		}
		if d.Capabilities, err = s.Capabilities(ctx); err != nil {
			return nil, nil, err
		}
		d.Ready, err = s.Probe(ctx)
		t := cli.Table{Header: []string{"DRIVER", d.Name}}
		t.Add("Version", d.Version)
		t.Add("Ready", d.Ready)
		t.Add("Fences", d.Capabilities.Fence)
		t.Add("Tells its clients", d.Capabilities.Clients)
		t.Add("Announces", d.Capabilities.All)
		return t, d, err
	})
	return c
}
