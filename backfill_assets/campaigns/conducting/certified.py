"""Certificates of a unit: which speak of its evidence as it is now, and whether a campaign lacks one that it needs."""

from __future__ import annotations

from collections.abc import Mapping

from backfill_assets.campaign.state import Campaign
from backfill_assets.campaign.validation import Certification
from backfill_assets.core.certificate import Certificate, standing_certificates
from backfill_assets.core.evidence import DatasetDay, DayEvidence
from backfill_assets.core.unit import Unit
from backfill_assets.ledger.ledger import Ledger


def certificates_of(ledger: Ledger, unit: str, evidence: Mapping[DatasetDay, DayEvidence]) -> Mapping[str, Certificate]:
    """By dataset the certificate that counts for this evidence of a unit, passed or not."""
    return standing_certificates(ledger.certificates(unit=unit), evidence)


def passed_of(certificates: Mapping[str, Certificate]) -> Mapping[str, str]:
    """By dataset the id of its certificate, where that has passed."""
    return {name: one.id for name, one in certificates.items() if one.passed}


def uncertified(campaign: Campaign, unit: Unit, certificates: Mapping[str, Certificate]) -> str:
    """Which certificate that the specification requires is lacking or has not passed, and what to do; or nothing."""
    if campaign.specification.validation.certificate is Certification.none:
        return ""
    lacking = [name for name in sorted(unit.targets) if name not in certificates]
    failed = [str(one) for one in certificates.values() if not one.passed]
    if lacking:
        return (
            f"its specification requires a certificate (validation.certificate), and there is none of the evidence of "
            f"{', '.join(lacking)} as it is now; get it with: backfill prove {campaign.id} (of days that have rows: others "
            "prove nothing)"
        )
    if failed:
        return (
            f"its specification requires a certificate (validation.certificate), but {'; '.join(failed)}. Mend the model, "
            f"go on with: backfill resume {campaign.id}, then: backfill prove {campaign.id}"
        )
    return ""
