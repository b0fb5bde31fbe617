package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/mutualtls"
)

func newFenceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "fence",
		Short: "Cut clients off from storage, for certain, and let them in again",
		Long: `Cuts clients off from storage by their addresses (fence add) and lets them in
again (fence rm): when a node has failed, or cannot be reached, and may still be
writing, its workload may start elsewhere only after the storage refuses it.

A fence is there when the command says so and ends with 0: then the client has
no session any more, nothing that it sends is taken, also not later, and it gets
no new session. Before that it may be there in part: repeat the command, which
goes on where it was. Fences outlive the server, and end only by fence rm. Do
that when the client has been restarted or is surely off: until then it may
still hold old data that it would write.

These commands speak CSI-Addons to any driver's socket: to that of cleat fence
serve, which stands in front of any storage server of this machine, of cleat csi
--addons-endpoint, or of somebody else's driver (--endpoint).`,
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

// fenceAsk is what every command takes that asks a fence service.
type fenceAsk struct {
	endpoint    string
	tls         mutualtls.Files
	serverName  string
	parameters  []string
	secrets     []string // KEY=FILE
	output      cli.Format
	timeout     time.Duration
	environment *pflag.FlagSet // those that may also come from it
}

// add puts the flags on one command. They are no flags of the group, below
// which there is a server with others.
func (f *fenceAsk) add(c *cobra.Command) {
	f.output = cli.FormatTable
	e := pflag.NewFlagSet("environment", pflag.ContinueOnError)
	e.StringVar(&f.endpoint, "endpoint", defaultFenceEndpoint, "socket of the CSI-Addons service, any driver's; or HOST:PORT")
	e.StringVar(&f.tls.Cert, "tls-cert", "", "certificate to show at HOST:PORT, a PEM file")
	e.StringVar(&f.tls.Key, "tls-key", "", "its private key, a PEM file that not everybody may read")
	e.StringVar(&f.tls.CA, "tls-ca", "", "authority that must have signed the server's certificate, a PEM file")
	e.StringVar(&f.serverName, "tls-server-name", "", "name that the server's certificate is for, where that is not HOST")
	e.VarP(&f.output, "output", "o", "table, json or yaml")
	e.DurationVar(&f.timeout, "timeout", 3*time.Minute, "give up after this time; 0 is never. When it is not given, a service that is not there is given up after 3 s")
	cli.DescribeEnv(e)
	f.environment = e
	c.Flags().AddFlagSet(e)
}

// addRequest puts the flags of what goes with a call on a command.
func (f *fenceAsk) addRequest(c *cobra.Command) {
	c.Flags().StringArrayVarP(&f.parameters, "parameter", "p", nil, "a parameter of the driver, key=value; may be repeated. Together they are whose fence it is")
	c.Flags().StringArrayVar(&f.secrets, "secret", nil, "a secret that the driver wants, KEY=FILE; may be repeated. The file's last line end is left out")
}

// run opens the service and asks. On a terminal it says what takes so long.
func (f *fenceAsk) run(cmd *cobra.Command, doing string, ask func(context.Context, *fenceService) error) error {
	if err := cli.Bind(f.environment, cli.Sources{LookupEnv: os.LookupEnv}); err != nil {
		return err
	}
	if f.timeout < 0 {
		return fmt.Errorf("--timeout %s is negative; 0 waits for ever", f.timeout)
	}
	target := client.Target{Endpoint: f.endpoint, TLS: f.tls, ServerName: f.serverName, Patience: 200 * time.Millisecond}
	if err := target.Check(); err != nil {
		return err
	}
	request, err := f.request()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	line := newProgress(cmd.ErrOrStderr(), doing)
	defer line.end()
	c, err := client.Open(target)
	if err != nil {
		return err
	}
	s := &fenceService{Client: c, request: request, notice: line.notice, absent: 3 * time.Second}
	if f.environment.Changed("timeout") {
		s.absent = 0
	}
	return errors.Join(ask(ctx, s), c.Close())
}

// request reads the parameters and the files of the secrets.
func (f *fenceAsk) request() (client.Request, error) {
	parameters, err := keyValues(f.parameters)
	if err != nil {
		return client.Request{}, err
	}
	secrets, err := readSecrets(f.secrets)
	return client.Request{Parameters: parameters, Secrets: secrets}, err
}

// print answers with a table for people or the document for programs.
func (f *fenceAsk) print(cmd *cobra.Command, table cli.Table, document any) error {
	return cli.Print(cmd.OutOrStdout(), f.output, table, document)
}
