// Command build builds the programs for the tests in test/kubernetes, those named
// or all except e2e.test, and prints their directory.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/cleatproject/cleat/test/kubernetes/programs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "Usage: build [NAME...]\nNames: %s\n", strings.Join(programs.Names(), " "))
	}
	flag.Parse()
	set, err := programs.Build(ctx, os.Stderr, flag.Args()...)
	if err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
	fmt.Println(set.Dir)
}
