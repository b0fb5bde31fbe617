package main

import (
	"os"

	"github.com/cleatproject/cleat/internal/linux/freeze"
)

// freezeGuardWord is the hidden command by which a driver starts the helper
// that thaws file systems should the driver die.
const freezeGuardWord = "freeze-guard"

func runFreezeGuard() error { return freeze.RunGuard(os.Stdin, os.Stdout) }

// freezeGuard starts this very program as the guard, also after its file was
// replaced by an upgrade.
func freezeGuard() *freeze.Guard { return freeze.NewGuard("/proc/self/exe", freezeGuardWord) }
