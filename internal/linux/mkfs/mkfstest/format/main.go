// Command format calls mkfs.Format, so that a test can kill it:
// format DEVICE TYPE UUID SCRATCH
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
)

func main() {
	kernelcall.Main()
	a := os.Args
	if err := mkfs.Format(context.Background(), mkfs.FormatRequest{Device: a[1], Type: mkfs.Type(a[2]), UUID: a[3], Scratch: a[4]}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
