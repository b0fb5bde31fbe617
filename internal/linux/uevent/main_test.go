package uevent

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(askDeaf) != "" {
		tellDeaf()
		return
	}
	goleak.VerifyTestMain(m)
}
