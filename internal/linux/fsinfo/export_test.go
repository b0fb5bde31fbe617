package fsinfo

// AmountOf allows values that this kernel does not report.
func AmountOf(total, free, available, unit uint64) Amount {
	return amount(total, free, available, unit)
}
