package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/kubelet/handler/csi"
	"github.com/cleatproject/cleat/kubelet/remote"
)

// bind takes settings from the environment, and refuses two ways to name the
// driver. One on the command line is stronger than the other way in the
// environment.
func (f *driverFlags) bind() error {
	driver, endpoint := f.environment.Lookup("driver"), f.environment.Lookup("endpoint")
	byDriver, byEndpoint := driver.Changed, endpoint.Changed
	if byDriver && byEndpoint {
		return errors.New("--driver and --endpoint both say which driver is meant: give one of them")
	}
	if err := cli.Bind(f.environment, cli.Sources{LookupEnv: os.LookupEnv}); err != nil {
		return err
	}
	switch {
	case byEndpoint:
		f.driver = ""
	case !byDriver && driver.Changed && endpoint.Changed:
		return errors.New("CLEAT_DRIVER and CLEAT_ENDPOINT (or CSI_ENDPOINT) are both set and both say which driver is meant: unset one, or give --driver or --endpoint")
	}
	return nil
}

// find asks a host of plugins where the driver of that name serves.
func (f *driverFlags) find(ctx context.Context) (endpoint string, err error) {
	h, err := remote.Dial(ctx, f.host)
	if err != nil {
		return "", fmt.Errorf("--driver %s: %w", f.driver, err)
	}
	p, err := h.Lookup(ctx, csi.Type, f.driver)
	if err := errors.Join(err, h.Close()); err != nil {
		return "", fmt.Errorf("--driver %s: %w", f.driver, err)
	}
	return p.Endpoint, nil
}

// driverNames completes the names of drivers that the host knows.
func (f *driverFlags) driverNames(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if err := f.bind(); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return pluginNames(cmd.Context(), f.host, csi.Type, prefix)
}
