package driver

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/server"
)

// Program is a program with the driver of one or several engines. Name, Version,
// DriverName and Engines are required.
type Program struct {
	Name    string // such as "acme-csi"
	Version string // semantic, as GetPluginInfo reports it
	// DriverName is the default of --driver-name, and names the driver in Kubernetes:
	// a domain name, such as "csi.acme.example".
	DriverName string
	Engines    []Engine // the first is the default of --engine
	// Long and Example are for the help of the command; empty: a sentence.
	Long, Example string
	// Usage replaces the help of flags that all drivers have, by name.
	Usage map[string]string
	// Defaults of --endpoint and --state-dir; empty: unix:///run/NAME/csi.sock and
	// /var/lib/NAME.
	Endpoint, StateDir string
}

// Main runs a program with the commands "csi", which serves the driver, and "version". It
// does not return.
func Main(p Program) {
	kernelcall.Main()
	root := &cobra.Command{
		Use: p.Name, Short: "CSI driver " + p.DriverName, Version: p.Version, SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(p.Command(), &cobra.Command{
		Use: "version", Short: "Print the version of this program", Args: cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), p.Name, p.Version) },
	})
	cli.CompleteValues(root)
	if err := root.ExecuteContext(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Command returns the command "csi" for a program that has others. The program calls
// kernelcall.Main first, as Main does.
func (p Program) Command() *cobra.Command {
	c := &cobra.Command{
		Use:     "csi",
		Short:   "Run the CSI driver (CSI 1.13)",
		Long:    cmp.Or(p.Long, "Runs the Container Storage Interface 1.13 driver "+p.DriverName+" on a UNIX socket."),
		Example: p.Example,
		Args:    cobra.NoArgs,
	}
	d := p.driver()
	d.addFlags(c.Flags())
	return d.Command(c, d, server.ReadBuild(p.Version))
}

// Parse reads the command line of the command "csi" and completes the deployment, without
// opening anything: for tests of an engine. Their caller closes the process.
func (p Program) Parse(args ...string) (*Process, error) {
	d := p.driver()
	fs := pflag.NewFlagSet("csi", pflag.ContinueOnError)
	d.addFlags(fs)
	if err := fs.Parse(args); err != nil {
		return nil, errs.Errorf(errs.Invalid, "%w", err)
	}
	d.Logger, d.Metrics = slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	return d.process, d.Complete()
}

// Engine returns the engine of --engine.
func (p *Process) Engine() Engine { return p.driver.engine }

// Close calls the functions of OnClose. Only the caller of Program.Parse does.
func (p *Process) Close(ctx context.Context) error { return p.driver.Close(ctx) }

func (p Program) driver() *driver {
	p.Endpoint = cmp.Or(p.Endpoint, "unix:///run/"+p.Name+"/csi.sock")
	p.StateDir = cmp.Or(p.StateDir, "/var/lib/"+p.Name)
	d := &driver{program: p}
	d.process = &Process{driver: d}
	return d
}
